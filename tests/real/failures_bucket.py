# SPDX-License-Identifier: Apache-2.0
"""A place in a bucket where a run is kept, and a hand that reads and damages what lies there.

It goes past the package under test, as whoever damages a bucket does.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from typing import Any

import boto3
from botocore.config import Config

from tests.real.s3_servers import BUCKET, S3Server

RUN = "run"
_THREADS = 8


class Place:
    """A prefix with one run.

    Args:
        server: that has it.
        prefix: of the place.
        environ: leads a trainer there.
    """

    def __init__(self, server: S3Server, prefix: str, environ: dict[str, str]) -> None:
        self.server = server
        self.environ = environ
        self.url = f"s3://{BUCKET}/{prefix}"
        self._root = f"{prefix}/{RUN}/"

    @cached_property
    def client(self) -> Any:
        """Return boto3's client, to the server itself.

        It asks again: of several first writes below one prefix, rclone refuses one now and then.
        """
        config = Config(
            retries={"total_max_attempts": 5, "mode": "standard"},
            request_checksum_calculation="when_required",
            response_checksum_validation="when_required",
        )
        return boto3.session.Session().client("s3", config=config, **self.server.options())

    def through(self, endpoint: str) -> dict[str, str]:
        """Return the variables that lead there by way of a proxy."""
        return self.environ | {"AWS_ENDPOINT_URL": endpoint}

    def names(self) -> list[str]:
        """Return the keys of all objects of the run."""
        pages = self.client.get_paginator("list_objects_v2").paginate(Bucket=BUCKET, Prefix=self._root)
        return [
            str(item["Key"]).removeprefix(self._root) for page in pages for item in page.get("Contents", ())
        ]

    def get(self, key: str) -> bytes:
        """Return an object."""
        body: bytes = self.client.get_object(Bucket=BUCKET, Key=self._root + key)["Body"].read()
        return body

    def put(self, key: str, body: bytes) -> None:
        """Write an object."""
        self.client.put_object(Bucket=BUCKET, Key=self._root + key, Body=body)

    def delete(self, *keys: str) -> None:
        """Remove objects."""
        for key in keys:
            self.client.delete_object(Bucket=BUCKET, Key=self._root + key)

    def change(self, key: str, change: Callable[[bytes], bytes]) -> None:
        """Damage an object."""
        self.put(key, change(self.get(key)))

    def content(self) -> dict[str, bytes]:
        """Return all objects."""
        return {key: self.get(key) for key in self.names()}

    def fill(self, content: Mapping[str, bytes]) -> None:
        """Write many objects."""
        with ThreadPoolExecutor(_THREADS) as pool:
            list(pool.map(self.put, content.keys(), content.values()))

    def clear(self) -> None:
        """Remove everything: the disks of the servers are small."""
        with ThreadPoolExecutor(_THREADS) as pool:
            list(pool.map(self.delete, self.names()))

    def latest(self) -> str | None:
        """Return the directory that LATEST names; None without one."""
        if "LATEST" not in self.names():
            return None
        return str(json.loads(self.get("LATEST"))["dir"])

    def latest_step(self) -> int | None:
        """Return the step that LATEST names."""
        latest = self.latest()
        return None if latest is None else step_of(latest)

    def dirs(self) -> list[str]:
        """Return the checkpoint directories, those of the lowest step first."""
        return sorted({key.partition("/")[0] for key in self.names() if key.startswith("step-")})

    def dir_of(self, step: int) -> str:
        """Return the only checkpoint directory of a step."""
        (found,) = [name for name in self.dirs() if step_of(name) == step]
        return found

    def uploads(self) -> list[tuple[str, str]]:
        """Return key and id of each upload of the run that is not finished."""
        answer = self.client.list_multipart_uploads(Bucket=BUCKET, Prefix=self._root)
        return [
            (item["Key"], item["UploadId"])
            for item in answer.get("Uploads", ())
            if item["Key"].startswith(self._root)
        ]


def step_of(directory: str) -> int:
    """Return the step in a directory's name."""
    return int(directory.split("-")[1])


def complete(keys: Iterable[str]) -> set[str]:
    """Return the directories that have a manifest."""
    return {key.partition("/")[0] for key in keys if key.endswith("/manifest.json")}
