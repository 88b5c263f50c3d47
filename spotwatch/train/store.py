# SPDX-License-Identifier: Apache-2.0
"""Where checkpoints lie: what a store must be able to do, and which one a URL means.

A store keeps bytes under names and knows nothing of checkpoints. Nothing is opened until it is used.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol
from urllib.parse import unquote, urlsplit

from spotwatch.errors import ConfigError

CHUNK_BYTES = 4 * 2**20


@dataclass(frozen=True, slots=True)
class Entry:
    """One object of a listing."""

    key: str
    size_bytes: int


class Store(Protocol):
    """Bytes under names (`a/b`), below one root. Every method raises `StoreError` when the store refuses."""

    @property
    def url(self) -> str:
        """Return the root, for people and for the status; without secrets."""

    def put(self, key: str, body: bytes | memoryview) -> None:
        """Store `body` whole; at return it survives a power cut, and no reader ever saw a part of it."""

    def get(self, key: str, *, most_bytes: int) -> bytes:
        """Return an object; raise `StoreMissing` without one and `CheckpointCorrupt` over `most_bytes`."""

    def stream(self, key: str) -> Iterator[bytes]:
        """Yield an object in pieces; raise `StoreMissing` without one."""

    def size_bytes(self, key: str) -> int:
        """Return the size of an object; raise `StoreMissing` without one."""

    def list(self) -> Iterator[Entry]:
        """Yield every object below the root, however many there are, in any order."""

    def delete(self, key: str) -> None:
        """Remove an object; one that is gone already is no error."""


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
