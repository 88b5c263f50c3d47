# SPDX-License-Identifier: Apache-2.0
"""A trainer that has never heard of spotwatch: it knows a flag, `os.remove`, and a SIGTERM handler.

Usage: legacy.py FLAG LOG PIDFILE [kill-on-flag=DIR | kill-on-order=DIR | kill-the-sender]

The last argument makes it kill the daemon at the worst moment: when the flag or order.json appears, or when
SIGTERM arrives, so that the daemon dies between signal and record.
"""

import json
import os
import signal
import sys
import time

FLAG, LOG, PIDFILE = sys.argv[1:4]
HABIT, _, PLACE = (sys.argv[4] if len(sys.argv) > 4 else "").partition("=")
has_killed = False
is_told_to_stop = False


def note(what: str) -> None:
    """Append one line to the log."""
    with open(LOG, "a", encoding="ascii") as file:  # noqa: PTH123 - as people write it
        file.write(f"{time.time():.3f} {what}\n")


def kill_the_daemon() -> None:
    """Send SIGKILL to whoever holds the runtime directory, once."""
    global has_killed  # noqa: PLW0603 - a script
    if not has_killed:
        has_killed = True
        with open(os.path.join(PLACE, "daemon.lock"), encoding="ascii") as lock:  # noqa: PTH118, PTH123
            os.kill(int(lock.read()), signal.SIGKILL)
        note("killed the daemon")


def on_signal(signum: int, frame: object) -> None:
    """Note the signal, as people do."""
    global is_told_to_stop  # noqa: PLW0603 - a script
    del signum, frame
    note("SIGTERM")
    if HABIT == "kill-the-sender":
        kill_the_daemon()
    is_told_to_stop = True


signal.signal(signal.SIGTERM, on_signal)
with open(PIDFILE, "w", encoding="ascii") as pidfile:  # noqa: PTH123 - as people write it
    pidfile.write(str(os.getpid()))
note("start")
deadline = time.time() + 120
while time.time() < deadline:
    time.sleep(0.01)
    if HABIT == "kill-on-order" and os.path.exists(os.path.join(PLACE, "order.json")):  # noqa: PTH110, PTH118
        kill_the_daemon()
    if os.path.exists(FLAG):  # noqa: PTH110 - as the tutorial writes it
        if HABIT == "kill-on-flag":
            kill_the_daemon()
        with open(FLAG, encoding="utf-8") as flag:  # noqa: PTH123 - as people write it
            body = flag.read()
        os.remove(FLAG)  # noqa: PTH107 - as the tutorial writes it
        note(f"saved for the flag of order {json.loads(body)['seq']}")
    if is_told_to_stop:
        note("saved and out")
        sys.exit(0)
