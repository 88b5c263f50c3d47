# SPDX-License-Identifier: Apache-2.0
"""Which signals the daemon hears, and for how long: those that end it, and those meant for its child.

It does not know what they lead to.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import Callable, Iterator

from spotwatch.child import PASSED_ON
from spotwatch.held_signal import let_through

ENDING = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
"""What ends us: a service manager, Ctrl-C, a terminal that closes."""


@contextlib.contextmanager
def hearing(end: Callable[[int], None], pass_on: Callable[[int], None] | None) -> Iterator[None]:
    """Call `end` for what ends us, and `pass_on` for what is meant for a child, inside of `with`.

    What is ignored when we begin stays so, as the starter meant it: `nohup`, a job in the background. Only
    SIGTERM is always heard.

    Args:
        end: gets the number of the signal.
        pass_on: gets the number of the signal; None: there is no child, and these do what they always do.
    """
    loop = asyncio.get_running_loop()
    ways = dict.fromkeys(ENDING, end)
    if pass_on is not None:
        ways |= {signum: pass_on for signum in PASSED_ON if signum not in ENDING}
    heard = [s for s in ways if s is signal.SIGTERM or signal.getsignal(s) is not signal.SIG_IGN]
    for signum in heard:
        loop.add_signal_handler(signum, ways[signum], signum)
    let_through()
    try:
        yield
    finally:
        for signum in heard:
            loop.remove_signal_handler(signum)
