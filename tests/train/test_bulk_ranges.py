# SPDX-License-Identifier: Apache-2.0
"""Ranges that come with status 200, as rclone sends them: obstore refuses them, and the store reads them."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path

import pytest

from spotwatch.train.stores.bulk_obstore import ObstoreBulk
from spotwatch.train.stores.pacing import Pace
from spotwatch.train.stores.s3 import S3Store
from spotwatch.train.stores.s3_bucket import Bucket
from tests.train.bulk_help import use_keys
from tests.train.s3_stand_in import Call, Reply, S3StandIn


def test_a_range_with_status_200(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The bytes arrive, and obstore is asked for the first of them only."""
    use_keys(monkeypatch, tmp_path)
    body = os.urandom(3000)
    asked = []
    with S3StandIn() as server:

        def fault(call: Call) -> Reply | None:
            if "range" not in call.headers:
                return None
            asked.append(call.headers.get("user-agent", ""))
            return dataclasses.replace(server.answer(call), status=200)

        server.objects["run/a"] = body
        server.fault = fault
        bucket = Bucket("bulk", {"endpoint_url": server.url})
        store = S3Store(bucket, "run", bulk=ObstoreBulk(bucket, Pace(None)))
        target = bytearray(len(body))
        for begin in (0, 1000, 2000):
            store.read_into("a", begin, memoryview(target)[begin : begin + 1000])
    assert target == body
    assert ["Boto3" in agent for agent in asked] == [False, True, True, True]
