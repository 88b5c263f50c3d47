# SPDX-License-Identifier: Apache-2.0
"""Fakes for tests, ours and yours: virtual time, in which a two-hour window passes at once, and a store.

They do not fake files, processes or HTTP: those are cheap enough to be real. Standard library only.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import selectors
import threading
import zlib
from collections.abc import Callable, Coroutine, Iterator, Mapping
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, TypeVar

from spotwatch.errors import CheckpointCorrupt, StoreConflict, StoreMissing

if TYPE_CHECKING:  # whoever wants virtual time alone is spared the trainer's side
    from spotwatch.train.parts import Body
    from spotwatch.train.store import Entry, OnPart

T = TypeVar("T")

EPOCH = datetime(2026, 11, 29, 12, 0, 0, tzinfo=UTC)
"""The moment at which virtual time begins unless a test says otherwise."""


class _JumpingSelector(selectors.BaseSelector):
    """Hand over ready sockets; when there are none, let time jump instead of waiting."""

    def __init__(self) -> None:
        self._real = selectors.DefaultSelector()
        self.virtual_seconds = 0.0

    def register(
        self,
        fileobj: Any,
        events: int,
        data: Any = None,
    ) -> selectors.SelectorKey:
        return self._real.register(fileobj, events, data)

    def unregister(self, fileobj: Any) -> selectors.SelectorKey:
        return self._real.unregister(fileobj)

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None:
            return self._real.select(None)
        ready = self._real.select(0)
        if not ready and timeout > 0:
            self.virtual_seconds += timeout
        return ready

    def get_map(self) -> Mapping[Any, selectors.SelectorKey]:
        return self._real.get_map()

    def close(self) -> None:
        self._real.close()


class VirtualLoop(asyncio.SelectorEventLoop):
    """An event loop whose time jumps to the next timer as soon as nothing else is ready.

    Work for threads is done at once and in place, so that no thread can be overtaken by the jumping time.
    """

    def __init__(self) -> None:
        self._jumping = _JumpingSelector()
        super().__init__(self._jumping)

    def time(self) -> float:
        """Return the virtual seconds since the loop was made."""
        return self._jumping.virtual_seconds

    def run_in_executor(  # type: ignore[override]
        self,
        executor: concurrent.futures.Executor | None,
        func: Callable[..., T],
        *args: Any,
    ) -> asyncio.Future[T]:
        """Call `func` here and now."""
        del executor
        future: asyncio.Future[T] = self.create_future()
        try:
            future.set_result(func(*args))
        except Exception as error:  # noqa: BLE001 - handed to whoever awaits
            future.set_exception(error)
        return future


class FakeClock:
    """A clock that follows the running (virtual) event loop, and can be pushed about.

    Args:
        start: what `now()` says at loop time 0.
        boot_id: the name of this boot; change it to play a reboot.
    """

    def __init__(self, start: datetime = EPOCH, boot_id: str = "boot-1") -> None:
        self.start = start
        self.boot_id = boot_id
        self.wall_offset_seconds = 0.0
        """Added to `now()` only: an NTP step or a wrong clock."""
        self.boot_offset_seconds = 1000.0

    def _elapsed(self) -> float:
        return asyncio.get_running_loop().time()

    def now(self) -> datetime:
        """Return the virtual wall clock."""
        return self.start + timedelta(seconds=self._elapsed() + self.wall_offset_seconds)

    def boot(self) -> float:
        """Return the virtual boot clock, which no wall step moves."""
        return self._elapsed() + self.boot_offset_seconds

    def monotonic(self) -> float:
        """Return the virtual monotonic clock."""
        return self._elapsed()

    async def sleep(self, seconds: float) -> None:
        """Sleep in virtual time."""
        await asyncio.sleep(seconds)


def run_virtual(main: Coroutine[Any, Any, T]) -> T:
    """Run `main` to its end on a new `VirtualLoop` and return its result."""
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(main)


class MemoryStore:
    """A checkpoint store in a dictionary, as `spotwatch.train.store.Store` wants it; gone with the process.

    Args:
        is_conditional: False: it says that it does not enforce conditional writes, as some stores do not.
    """

    url = "memory://"

    def __init__(self, *, is_conditional: bool = True) -> None:
        self.is_conditional = is_conditional
        self.objects: dict[str, bytes] = {}
        """By key; a test may damage them."""
        self._versions: dict[str, int] = {}
        self._count = 0
        self._lock = threading.RLock()

    def put(self, key: str, body: bytes) -> None:
        """Keep `body`."""
        with self._lock:
            self._keep(key, body)

    def put_if(self, key: str, body: bytes, version: str | None) -> str:
        """Keep `body` if `version` is still the present one, and return the new one."""
        with self._lock:
            if version != self._version(key):
                raise StoreConflict(f"{key} is of version {self._version(key)}, not {version}")
            return self._keep(key, body)

    def get(self, key: str, *, most_bytes: int) -> bytes:
        """Return an object."""
        return self.read(key, most_bytes=most_bytes)[0]

    def read(self, key: str, *, most_bytes: int) -> tuple[bytes, str]:
        """Return an object and its version."""
        with self._lock:
            body = self._body(key)
            if len(body) > most_bytes:
                raise CheckpointCorrupt(f"{key} has {len(body)} bytes, more than {most_bytes}")
            return body, str(self._version(key))

    def prepare(self, size_bytes: int) -> None:
        """Do nothing."""

    def close(self) -> None:
        """Do nothing; the objects stay."""

    def upload(self, key: str, body: Body, on_part: OnPart) -> tuple[str, ...]:
        """Keep a body, and return the CRC-32 of each part."""
        parts: list[bytes] = []
        for part in body.parts():
            parts.append(bytes(part))
            on_part(sum(map(len, parts)))
        with self._lock:
            self._keep(key, b"".join(parts))
        return tuple(f"{zlib.crc32(part):08x}" for part in parts)

    def read_into(self, key: str, begin: int, target: memoryview) -> None:
        """Fill `target` from byte `begin` on."""
        body = self._body(key)[begin : begin + len(target)]
        if len(body) < len(target):
            raise CheckpointCorrupt(f"{key} ends before byte {begin + len(target)}")
        target[:] = body

    def size_bytes(self, key: str) -> int:
        """Return the size of an object."""
        return len(self._body(key))

    def list(self) -> Iterator[Entry]:
        """Yield every object."""
        from spotwatch.train.store import Entry  # noqa: PLC0415 - see the guarded import above

        with self._lock:
            entries = [Entry(key, len(body)) for key, body in self.objects.items()]
        return iter(entries)

    def delete(self, key: str) -> None:
        """Forget an object."""
        with self._lock:
            self.objects.pop(key, None)
            self._versions.pop(key, None)

    def abort_uploads(self) -> int:
        """Return 0: an upload that did not end left nothing."""
        return 0

    def _keep(self, key: str, body: bytes) -> str:
        self._count += 1
        self._versions[key] = self._count
        self.objects[key] = bytes(body)
        return str(self._count)

    def _body(self, key: str) -> bytes:
        try:
            return self.objects[key]
        except KeyError:
            raise StoreMissing(f"there is no {key}") from None

    def _version(self, key: str) -> str | None:
        return str(self._versions.get(key, 0)) if key in self.objects else None
