# SPDX-License-Identifier: Apache-2.0
"""How an S3 store hands its large bodies to something that moves them outside the interpreter lock.

It moves no bytes.
"""

from __future__ import annotations

from typing import Protocol

from spotwatch.train.parts import Body
from spotwatch.train.store import OnPart


class Bulk(Protocol):
    """Moves large bodies for one bucket. Keys are full ones, prefix included. Threads may use it at once.

    Every method raises `StoreError` when the store refuses, `StoreMissing` when there is no such object.
    """

    def prepare(self) -> None:
        """Start what takes long to start, and return at once."""

    def upload(self, key: str, body: Body, on_part: OnPart) -> tuple[str, ...] | None:
        """Store `body` in parts as `Store.upload` does; None: not for this body, and nothing was sent."""

    def read_into(self, key: str, begin: int, target: memoryview) -> bool:
        """Fill `target` as `Store.read_into` does; False: it reads nothing, the store itself must.

        Raises:
            CheckpointCorrupt: the object ends too early.
        """

    def close(self) -> None:
        """End what `prepare` or an upload started."""
