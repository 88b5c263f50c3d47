# SPDX-License-Identifier: Apache-2.0
"""Where checkpoints lie: what a store must be able to do, and which one a URL means.

A store keeps bytes under names and knows nothing of checkpoints. Nothing is opened until it is used.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Protocol
from urllib.parse import SplitResult, unquote, urlsplit

from spotwatch.errors import ConfigError
from spotwatch.train.parts import Body
from spotwatch.train.stores.pacing import Pace

CHUNK_BYTES = 4 * 2**20
PROBE = ".probe/"
"""Where `is_conditional` writes; keys below are nobody's checkpoint."""
OnPart = Callable[[int], None]
# What boto3 takes, and the `$root` and `$web` of Azure; a name with a port belongs to a server.
_BUCKET = re.compile(r"[A-Za-z0-9$._-]{1,255}")


@dataclass(frozen=True, slots=True)
class Entry:
    """One object of a listing."""

    key: str
    size_bytes: int


class Store(Protocol):
    """Bytes under names (`a/b`), below one root. Every method raises `StoreError` when the store refuses.

    Threads may use one store at once.
    """

    @property
    def url(self) -> str:
        """Return the root, for people and for the status; without secrets."""

    @property
    def is_conditional(self) -> bool:
        """Tell whether the store enforces `put_if`; found out once, by writing below `.probe`, then known."""

    def put(self, key: str, body: bytes) -> None:
        """Store a small object whole; at return it survives a power cut; nobody ever reads a part of it."""

    def put_if(self, key: str, body: bytes, version: str | None) -> str:
        """Store a small object if it is still the one that was read, and return its new version.

        Bodies need something that is theirs alone, a token or a counter: a conflict over an object that holds
        exactly these bytes is taken for an earlier try of our own that succeeded.

        Args:
            key: of the object.
            body: the new bytes.
            version: as `read` or `put_if` returned it; None: there must be no such object.

        Raises:
            StoreConflict: there is another version, or an object where none may be.
        """

    def get(self, key: str, *, most_bytes: int) -> bytes:
        """Return an object; raise `StoreMissing` without one and `CheckpointCorrupt` over `most_bytes`."""

    def read(self, key: str, *, most_bytes: int) -> tuple[bytes, str]:
        """Return an object and its version; raise as `get`."""

    def prepare(self, size_bytes: int) -> None:
        """Start what an upload of that size will need and takes long to start; return at once."""

    def upload(self, key: str, body: Body, on_part: OnPart) -> tuple[str, ...]:
        """Store a large object in parts, some at once, and return each part's CRC-32 in order.

        The checksums are of the bytes that were sent; no bytes have no parts. Parts that fail are sent again.
        Whatever ends the upload early, also what `on_part` raises, leaves no object and, as far as the store
        lets us, no parts. At return nobody reads the body any more.

        Args:
            key: of the object.
            body: its bytes.
            on_part: called now and then with the bytes that have left so far, at the end all of them, perhaps
                more; a change says that the upload moves. What it raises ends the upload.
        """

    def read_into(self, key: str, begin: int, target: memoryview) -> None:
        """Fill `target` from byte `begin` of an object on; raise `StoreMissing` without one.

        Raises:
            CheckpointCorrupt: the object ends too early.
        """

    def size_bytes(self, key: str) -> int:
        """Return the size of an object; raise `StoreMissing` without one."""

    def list(self) -> Iterator[Entry]:
        """Yield every object below the root, however many there are, in any order."""

    def delete(self, key: str) -> None:
        """Remove an object; one that is gone already is no error."""

    def abort_uploads(self) -> int:
        """Remove the parts of uploads below the root that were never finished; return how many uploads."""

    def close(self) -> None:
        """End processes and connections; what is used afterwards starts again, and twice is harmless.

        It waits for uploads that are under way. What other libraries keep for the whole process stays.
        """


def open_store(
    url: str, run_id: str, environ: Mapping[str, str], *, most_bytes_per_second: float | None = None
) -> Store:
    """Return the store of one run below `url`.

    Args:
        url: a path, `file:///path`, `s3://bucket/prefix`, `spaces://bucket/prefix` (DigitalOcean Spaces;
            an empty bucket means `$SPACES_BUCKET`), `gs://bucket/prefix` or `az://container/prefix`.
        run_id: the run; it becomes the last part of the root.
        environ: holds credentials and endpoints; the ones that boto3 knows, or `SPACES_*`.
        most_bytes_per_second: that all uploads of this process send together; None: no limit.

    Raises:
        ConfigError: no store is meant by it, or a variable or a package is missing.
    """
    try:
        parts = urlsplit(url)
    except ValueError as error:
        # Without what follows the scheme, which may hold a secret.
        raise ConfigError(
            f"checkpoint URL {url.partition(':')[0]}://...: {error}; write a path, or s3://bucket/prefix"
        ) from error
    pace = Pace(most_bytes_per_second)
    if not parts.scheme:
        return _directory(url, run_id, pace)
    if parts.scheme == "file":
        if parts.netloc not in ("", "localhost") or not parts.path.startswith("/"):
            raise ConfigError(f"checkpoint URL {url!r}: write file:///absolute/path, with three slashes")
        return _directory(unquote(parts.path), run_id, pace)
    if parts.scheme not in _OBJECTS:
        raise ConfigError(
            f"checkpoint URL {url!r}: no store for {parts.scheme}://; "
            f"have a path, file://, {', '.join(f'{scheme}://' for scheme in _OBJECTS)}"
        )
    if parts.query or parts.fragment or "@" in parts.netloc:
        raise ConfigError(
            f"checkpoint URL: only {parts.scheme}://bucket/prefix; credentials belong in the environment"
        )
    if not parts.netloc and parts.scheme != "spaces":
        raise ConfigError(f"checkpoint URL {url!r} names no bucket; write {parts.scheme}://bucket/prefix")
    if parts.netloc and not _BUCKET.fullmatch(parts.netloc):
        raise ConfigError(
            f"checkpoint URL {url!r}: {parts.netloc!r} can be no bucket; "
            f"write {parts.scheme}://bucket/prefix, and where the server is into the environment"
        )
    if not {".", ".."}.isdisjoint(parts.path.split("/")):
        # Some clients resolve it, some servers refuse it, and to others it is a name like any other.
        raise ConfigError(f"checkpoint URL {url!r}: a bucket has no . and ..; write the prefix itself")
    return _OBJECTS[parts.scheme](parts, run_id, environ, pace)


def _s3(parts: SplitResult, run_id: str, environ: Mapping[str, str], pace: Pace) -> Store:
    from spotwatch.train.stores import s3 as store_s3  # noqa: PLC0415 - it imports this module

    return store_s3.open_s3(parts.netloc, _root(parts, run_id), environ, pace)


def _spaces(parts: SplitResult, run_id: str, environ: Mapping[str, str], pace: Pace) -> Store:
    from spotwatch.train.stores import s3 as store_s3  # noqa: PLC0415 - it imports this module

    return store_s3.open_spaces(parts.netloc, _root(parts, run_id), environ, pace)


def _object(parts: SplitResult, run_id: str, environ: Mapping[str, str], pace: Pace) -> Store:
    if find_spec("obstore") is None:
        raise ConfigError(f"{parts.scheme}:// needs `pip install 'spotwatch[fast]'`")
    from spotwatch.train.stores import objects as store_object  # noqa: PLC0415 - it imports this module

    return store_object.open_object(parts, run_id, environ, pace)


_OBJECTS: Mapping[str, Callable[[SplitResult, str, Mapping[str, str], Pace], Store]] = {
    "s3": _s3,
    "spaces": _spaces,
    "gs": _object,
    "az": _object,
}


def _root(parts: SplitResult, run_id: str) -> str:
    return "/".join(p for p in (parts.path.strip("/"), run_id) if p)


def _directory(path: str, run_id: str, pace: Pace) -> Store:
    from spotwatch.train.stores.directory import DirectoryStore  # noqa: PLC0415 - it imports this module

    if not path.strip():
        raise ConfigError("the checkpoint URL is empty; give a path, file://, s3:// or spaces://")
    if "\0" in path:
        raise ConfigError(f"checkpoint URL {path!r}: a path has no zero byte in it")
    try:
        home = Path(path).expanduser()
    except RuntimeError as error:
        raise ConfigError(f"checkpoint URL {path!r}: {error}; write the path from / on") from error
    return DirectoryStore(home.absolute() / run_id, pace)
