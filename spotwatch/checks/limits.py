# SPDX-License-Identifier: Apache-2.0
"""How a question is kept from hanging: each has its own time limit, and what blocks gets a thread of its own.

It knows no question.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import ParamSpec, TypeVar

from spotwatch.checks.finding import Finding, fail

T = TypeVar("T")
P = ParamSpec("P")


class LooseThreads(ThreadPoolExecutor):
    """A thread for each call, for none of which the end of the process waits.

    Any other executor would: a directory or a name server that is dead would keep the check from ending.
    """

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """Begin `fn` in a thread of its own."""
        future: Future[T] = Future()

        def work() -> None:
            if not future.set_running_or_notify_cancel():
                return
            try:
                result = fn(*args, **kwargs)
            except BaseException as error:  # noqa: BLE001 - raised again where it is awaited
                future.set_exception(error)
            else:
                future.set_result(result)

        threading.Thread(target=work, name="check", daemon=True).start()
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Wait for nobody."""


async def in_thread(call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Return what `call` returns, from a thread that the end of the process does not wait for."""
    loop = asyncio.get_running_loop()
    return await loop.run_in_executor(LooseThreads(), partial(call, *args, **kwargs))


async def told(call: Callable[P, Iterable[Finding]], *args: P.args, **kwargs: P.kwargs) -> list[Finding]:
    """Return all that `call` yields, from a thread as `in_thread` has it."""
    return await in_thread(lambda: list(call(*args, **kwargs)))


async def answered(name: str, question: Awaitable[list[Finding]], seconds: float) -> list[Finding]:
    """Return the answer to `question`; one that takes longer, or breaks, is a finding of its own.

    Args:
        name: of the finding then.
        question: not begun.
        seconds: its limit.
    """
    try:
        async with asyncio.timeout(seconds):
            return await question
    except TimeoutError:
        mend = "see what it waits for: a file system or service that does not answer"
        return [fail(name, f"no answer within {seconds:g} s", mend)]
    except Exception as error:  # noqa: BLE001 - one question that breaks must not take the others with it
        mend = "run it again with sudo; if it stays, please report it"
        return [fail(name, f"could not be answered: {type(error).__name__}: {error}", mend)]
