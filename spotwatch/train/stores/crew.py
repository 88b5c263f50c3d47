# SPDX-License-Identifier: Apache-2.0
"""A few threads for requests that may hang: who began them waits for them, the program's end does not.

Not `ThreadPoolExecutor`: the interpreter waits for its threads before it ends, minutes where a store hangs.
It knows no store.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import ParamSpec, Self, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


class Crew:
    """Does so many things at once, each in a thread; the end of its `with` waits for all of them.

    Args:
        size: how many at once.
        name: of the threads.
    """

    def __init__(self, size: int, name: str) -> None:
        self._free = threading.Semaphore(size)
        self._name = name
        self._threads: list[threading.Thread] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for thread in self._threads:
            thread.join()

    def submit(self, call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """Have it done and return what will come of it; it waits until a thread is free."""
        future: Future[T] = Future()
        future.set_running_or_notify_cancel()

        def run() -> None:
            try:
                future.set_result(call(*args, **kwargs))
            except BaseException as error:  # noqa: BLE001 - raised again by whoever asks for the result
                future.set_exception(error)
            finally:
                self._free.release()

        self._free.acquire()
        self._threads = [thread for thread in self._threads if thread.is_alive()]
        thread = threading.Thread(target=run, name=self._name, daemon=True)
        self._threads.append(thread)
        try:
            thread.start()
        except RuntimeError:
            self._threads.remove(thread)
            self._free.release()
            raise
        return future
