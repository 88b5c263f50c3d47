# SPDX-License-Identifier: Apache-2.0
"""Workers of a batch, each a fork of this process, so that fifty lives cost one import.

Run as `done_run.py STORE TRACE`. On standard input a line of JSON begins a life, `{"life": 3, ...}`, and its
process id is printed; `{"wait": 1234}` prints how that process has ended.
"""

from __future__ import annotations

import json
import logging
import os
import sys
import time
from typing import Any

from spotwatch.train import DoneList

log = logging.getLogger(__name__)


def say(number: int) -> None:
    """Answer the test."""
    sys.stdout.write(f"{number}\n")
    sys.stdout.flush()


def main() -> None:
    """Begin lives until the end of the input."""
    store, trace = sys.argv[1:3]
    if store.startswith("s3:"):
        import boto3  # noqa: PLC0415 - once for all lives

        log.debug("boto3 %s", boto3.__version__)
    for line in sys.stdin:
        told = json.loads(line)
        if "wait" in told:
            status = os.waitpid(told["wait"], 0)[1]
            say(os.waitstatus_to_exitcode(status))
            continue
        pid = os.fork()
        if not pid:
            code = 1
            try:
                code = live(store, trace, **told)
            except SystemExit as error:
                code = error.code if isinstance(error.code, int) else 1
            except BaseException:
                log.exception("the life has failed")
            finally:
                os._exit(code)
        say(pid)


def live(
    store: str,
    trace: str,
    life: int,
    items: int,
    seconds: float = 0.0,
    size: int = 0,
    long_item: int = -1,
    polls: bool = False,
    **options: Any,
) -> int:
    """Do what is left of the batch, and note each item as it begins."""
    logging.basicConfig(level=logging.INFO, format=f"%(asctime)s life {life} %(message)s")
    fd = os.open(trace, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)

    def infer(number: int) -> dict[str, Any]:
        # In one write: what is noted has begun, also before a SIGKILL.
        os.write(fd, f"{life} {number}\n".encode())
        time.sleep(seconds)
        while number == long_item and not (polls and done.poll()):
            time.sleep(0.01)
        return {"number": number, "life": life}

    done = DoneList(store, run_id="batch", **options)
    with done:
        if size:
            for batch in done.batches(range(items), size, key="item-{}".format):
                done.add_many((f"item-{number}", infer(number)) for number in batch)
        else:
            for number in done.todo(range(items), key="item-{}".format):
                output = infer(number)
                if number == long_item and done.poll():
                    break
                done.add(f"item-{number}", output)
    return done.exit_code


if __name__ == "__main__":
    main()
