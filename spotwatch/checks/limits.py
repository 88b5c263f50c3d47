# SPDX-License-Identifier: Apache-2.0
"""How a question is kept from hanging: each has its own time limit, and what blocks gets a thread of its own.

It knows no question.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Awaitable, Callable, Iterable
from typing import ParamSpec, TypeVar

from spotwatch.checks.finding import Finding, fail

T = TypeVar("T")
P = ParamSpec("P")


async def in_thread(call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Return what `call` returns, from a thread that the end of the process does not wait for.

    `asyncio.to_thread` would: a directory on a dead server would keep the check from ending.
    """
    loop = asyncio.get_running_loop()
    future: asyncio.Future[T] = loop.create_future()

    def settle(result: T | None, error: BaseException | None) -> None:
        if future.done():
            return
        if error is not None:
            future.set_exception(error)
        else:
            future.set_result(result)  # type: ignore[arg-type]  # None only beside an error, or if T allows it

    def work() -> None:
        result: T | None = None
        problem: BaseException | None = None
        try:
            result = call(*args, **kwargs)
        except BaseException as error:  # noqa: BLE001 - raised again where it is awaited
            problem = error
        with contextlib.suppress(RuntimeError):  # the loop has ended, nobody waits any more
            loop.call_soon_threadsafe(settle, result, problem)

    threading.Thread(target=work, name="check", daemon=True).start()
    return await future


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
