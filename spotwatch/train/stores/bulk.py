# SPDX-License-Identifier: Apache-2.0
"""What moves an S3 store's large bodies without holding the trainer's interpreter lock, and which one it is.

It moves no bytes. Chosen by measurement: obstore, which runs outside the lock, where it is installed; else
boto3 in a process of its own. What neither takes goes the store's general way.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib.util import find_spec
from typing import Protocol

from spotwatch.errors import ConfigError
from spotwatch.train.parts import Body
from spotwatch.train.store import OnPart
from spotwatch.train.stores.pacing import Pace
from spotwatch.train.stores.s3_bucket import Bucket

UPLOADER = "SPOTWATCH_UPLOADER"
"""The variable that overrules the choice: `obstore` or `boto3`."""


class Bulk(Protocol):
    """Moves large bodies for one bucket. Keys are full ones, prefix included. Threads may use it at once.

    Every method raises `StoreError` when the store refuses, `StoreMissing` when there is no such object.
    """

    def prepare(self, size_bytes: int) -> None:
        """Start what an upload of that size will need and takes long to start; return at once."""

    def upload(self, key: str, body: Body, on_part: OnPart) -> tuple[str, ...] | None:
        """Store `body` in parts as `Store.upload` does; None: not for this body, and nothing was sent."""

    def read_into(self, key: str, begin: int, target: memoryview) -> bool:
        """Fill `target` as `Store.read_into` does; False: the store itself must.

        Raises:
            CheckpointCorrupt: the object ends too early.
        """

    def close(self) -> None:
        """End what `prepare` or an upload started; it starts again when it is needed."""


def choose_bulk(bucket: Bucket, pace: Pace, environ: Mapping[str, str]) -> Bulk:
    """Return what moves the large bodies of a bucket; nothing is imported or started yet.

    Args:
        bucket: where.
        pace: of all uploads of this process.
        environ: may overrule the choice by `SPOTWATCH_UPLOADER`.

    Raises:
        ConfigError: the variable names none, or one that is not installed.
    """
    wanted = environ.get(UPLOADER) or None
    if wanted not in (None, "obstore", "boto3"):
        raise ConfigError(f"{UPLOADER}={wanted!r}: have obstore, boto3")
    has_obstore = find_spec("obstore") is not None
    if wanted == "obstore" and not has_obstore:
        raise ConfigError(f"{UPLOADER}=obstore needs `pip install 'spotwatch[fast]'`")
    if has_obstore and wanted != "boto3":
        from spotwatch.train.stores.bulk_obstore import ObstoreBulk  # noqa: PLC0415 - it imports this module's kin

        return ObstoreBulk(bucket, pace)
    from spotwatch.train.stores.uploader import ProcessBulk  # noqa: PLC0415 - as above

    return ProcessBulk(bucket, pace)
