# SPDX-License-Identifier: Apache-2.0
"""Where checkpoints lie: what a store must be able to do, and which one a URL means.

A store keeps bytes under names and knows nothing of checkpoints. Nothing is opened until it is used.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol
from urllib.parse import unquote, urlsplit

from spotwatch.errors import ConfigError
from spotwatch.train.parts import Body

CHUNK_BYTES = 4 * 2**20
OnPart = Callable[[int], None]


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
        """Tell whether the store enforces `put_if`; asked of it once, by writing below `.probe`, then known."""

    def put(self, key: str, body: bytes) -> None:
        """Store a small object whole; at return it survives a power cut, and no reader ever saw a part of it."""

    def put_if(self, key: str, body: bytes, version: str | None) -> str:
        """Store a small object if it is still the one that was read, and return its new version.

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

    def upload(self, key: str, body: Body, on_part: OnPart) -> tuple[str, ...]:
        """Store a large object in parts, some at once, and return each part's CRC-32 in order.

        The checksums are of the bytes that were sent. Parts that fail are sent again. Whatever ends the upload
        early, also what `on_part` raises, leaves no object and, as far as the store lets us, no parts.

        Args:
            key: of the object.
            body: its bytes.
            on_part: called now and then with the bytes sent so far; what it raises ends the upload.
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


def open_store(url: str, run_id: str, environ: Mapping[str, str]) -> Store:
    """Return the store of one run below `url`.

    Args:
        url: a path, `file:///path`, `s3://bucket/prefix`, or `spaces://bucket/prefix` (DigitalOcean Spaces;
            an empty bucket means `$SPACES_BUCKET`).
        run_id: the run; it becomes the last part of the root.
        environ: holds credentials and endpoints; the ones that boto3 knows, or `SPACES_*`.

    Raises:
        ConfigError: no store is meant by it, or a variable is missing.
    """
    parts = urlsplit(url)
    if not parts.scheme:
        return _directory(url, run_id)
    if parts.scheme == "file":
        if parts.netloc not in ("", "localhost") or not parts.path:
            raise ConfigError(f"checkpoint URL {url!r}: write file:///absolute/path, with three slashes")
        return _directory(unquote(parts.path), run_id)
    if parts.scheme in ("s3", "spaces"):
        if parts.query or parts.fragment or "@" in parts.netloc:
            raise ConfigError(
                "checkpoint URL: only s3://bucket/prefix; credentials belong in the environment"
            )
        from spotwatch.train import store_s3  # noqa: PLC0415 - boto3 takes a second to import

        prefix = "/".join(p for p in (parts.path.strip("/"), run_id) if p)
        if parts.scheme == "spaces":
            return store_s3.open_spaces(parts.netloc, prefix, environ)
        if not parts.netloc:
            raise ConfigError(f"checkpoint URL {url!r} names no bucket; write s3://bucket/prefix")
        return store_s3.S3Store(parts.netloc, prefix, store_s3.aws_options(environ))
    raise ConfigError(
        f"checkpoint URL {url!r}: no store for {parts.scheme}://; have a path, file://, s3://, spaces://"
    )


def _directory(path: str, run_id: str) -> Store:
    from spotwatch.train.store_dir import DirectoryStore  # noqa: PLC0415 - it imports this module

    if not path:
        raise ConfigError("the checkpoint URL is empty; give a path, file://, s3:// or spaces://")
    return DirectoryStore(Path(path).expanduser().absolute() / run_id)
