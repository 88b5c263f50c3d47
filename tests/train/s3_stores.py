# SPDX-License-Identifier: Apache-2.0
"""Stores on the S3 server of this process, small and quick, for tests of what goes wrong."""

from __future__ import annotations

import itertools
import os

import pytest

from spotwatch.train.parts import Held
from spotwatch.train.stores import s3_bucket
from spotwatch.train.stores.bulk import Bulk
from spotwatch.train.stores.s3 import S3Store
from spotwatch.train.stores.s3_bucket import Bucket

PART_BYTES = 50_000
_numbers = itertools.count()


def be_quick(patch: pytest.MonkeyPatch) -> None:
    """Let the pauses between tries be short, and parts small."""
    patch.setattr(s3_bucket, "_PAUSE_SECONDS", 0.01)
    patch.setattr("moto.s3.models.S3_UPLOAD_PART_MIN_SIZE", 1)


def store_at(endpoint: str, name: str = "bucket", bulk: Bulk | None = None) -> S3Store:
    """Return an empty store; without `bulk` all of it is boto3's, in this process."""
    return S3Store(Bucket(name, {"endpoint_url": endpoint}), f"faults/run-{next(_numbers)}", bulk=bulk)


def held(size_bytes: int) -> Held:
    """Return a body that no other test has."""
    return Held(memoryview(os.urandom(size_bytes)), PART_BYTES)


def whole(store: S3Store, key: str) -> bytes:
    """Return all of an object."""
    return store.get(key, most_bytes=2**30)
