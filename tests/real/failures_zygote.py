# SPDX-License-Identifier: Apache-2.0
"""Starts scripts in processes that have imported torch already: one import for all of them, not one for each.

A line of JSON on standard input starts one; lines on standard output say which process it became and how that
ended. A script ends as under the interpreter itself: with its own status, tracebacks and exit handlers. It
knows no trainer.
"""

from __future__ import annotations

import gc
import json
import os
import runpy
import select
import signal
import sys
from pathlib import Path
from typing import Any

import boto3  # noqa: F401 - what the scripts import, before they are forked
import torch
import torch._dynamo  # optimizers import it at their first step, for more than a second
import torch.distributed.checkpoint
import torch.utils.data


def serve() -> list[str]:
    """Start scripts until there are no more; return, in each of their processes, what it is to run."""
    woken, wake = os.pipe()
    os.set_blocking(wake, False)
    signal.set_wakeup_fd(wake)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    children: dict[int, int] = {}
    while True:
        ready, _, _ = select.select([0, woken], [], [])
        if woken in ready:
            os.read(woken, 64)
            _reap(children)
        if 0 in ready:
            line = sys.stdin.buffer.readline()
            if not line:
                for pid in children:
                    os.kill(pid, signal.SIGKILL)
                return []
            job = json.loads(line)
            pid = os.fork()
            if not pid:
                signal.set_wakeup_fd(-1)
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                os.close(woken)
                os.close(wake)
                return _become(job)
            children[pid] = job["number"]
            _say(number=job["number"], pid=pid)


def _become(job: dict[str, Any]) -> list[str]:
    os.setsid()
    for place in job["groups"]:
        Path(place).write_text(str(os.getpid()), encoding="ascii")
    log = os.open(job["log"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    nothing = os.open(os.devnull, os.O_RDONLY)
    for source, target in ((nothing, 0), (log, 1), (log, 2)):
        os.dup2(source, target)
    os.close(log)
    os.close(nothing)
    os.environ.clear()
    os.environ.update(job["environ"])
    command: list[str] = job["command"]
    return command


def _reap(children: dict[int, int]) -> None:
    while children:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if not pid:
            return
        _say(number=children.pop(pid), status=os.waitstatus_to_exitcode(status))


def _say(**row: int) -> None:
    os.write(1, json.dumps(row).encode() + b"\n")


if __name__ == "__main__":
    torch.set_num_threads(1)
    gc.freeze()
    command = serve()
    if command:
        sys.argv = command
        runpy.run_path(command[0], run_name="__main__")
