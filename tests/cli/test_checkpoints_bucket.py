# SPDX-License-Identifier: Apache-2.0
"""`checkpoints` on a bucket: all pages of a listing, the same answers, and only the head of a file."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import boto3
import pytest
from moto.s3.models import s3_backends
from moto.server import ThreadedMotoServer

from tests.train.s3_stand_in import S3StandIn

from .checkpoint_runs import (
    RUN,
    checkpoints,
    directory_of,
    everything,
    file_of,
)

torch = pytest.importorskip("torch")


@pytest.fixture(scope="module")
def bucket() -> Iterator[str]:
    """Return the URL of a bucket of our own, with credentials in the environment."""
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    with pytest.MonkeyPatch.context() as patch:
        server.start()
        host, port = server.get_host_and_port()
        patch.setenv("AWS_ACCESS_KEY_ID", "testing")
        patch.setenv("AWS_SECRET_ACCESS_KEY", "testing")
        patch.setenv("AWS_DEFAULT_REGION", "us-east-1")
        patch.setenv("AWS_ENDPOINT_URL", f"http://{host}:{port}")
        client().create_bucket(Bucket="checkpoints-cli")
        yield "s3://checkpoints-cli/runs"
        server.stop()


def client() -> Any:
    """Return boto3's client, by the environment."""
    return boto3.session.Session().client("s3")


def put(key: str, body: bytes) -> None:
    """Put an object past the server's front door: over HTTP a thousand would take a minute."""
    s3_backends["123456789012"]["aws"].put_object("checkpoints-cli", f"runs/{key}", body)


def test_a_run_of_over_a_thousand_keys(bucket: str) -> None:
    """All pages of a listing are read."""
    for rank in range(1100):
        put(f"many/step-000000001-g1-going/rank-{rank:05d}.safetensors", b"1")
    put("many/step-000000002-g1-after/rank-00000.safetensors", b"1")
    rows = checkpoints("list", bucket, "--run-id", "many", "--json").document["checkpoints"]
    assert [(row["step"], row["files"], row["state"]) for row in rows] == [
        (2, 1, "incomplete"),
        (1, 1100, "incomplete"),
    ]


def test_a_bucket_answers_as_a_directory(root: Path, bucket: str) -> None:
    """The same rows; shown, verified and pruned."""
    for name, (_, body) in everything(root).items():
        put(f"{RUN}/{name}", body)
    here, there = (
        checkpoints("list", where, "--run-id", RUN, "--json").document for where in (root.parent, bucket)
    )
    assert there["checkpoints"] == here["checkpoints"]
    assert there["lease"] == here["lease"]
    assert checkpoints("show", f"{bucket}/{RUN}", "--json").document["checkpoint"]["tensors"]["count"] >= 2
    verified = checkpoints("verify", f"{bucket}/{RUN}", "--all", "--json").document
    assert [one["status"] for one in verified["checkpoints"]] == ["verified"] * 3
    assert verified["size_bytes"] == 3 * file_of(root, 3).stat().st_size
    pruned = checkpoints("prune", f"{bucket}/{RUN}", "--keep", "2", "--yes", "--json").document
    assert pruned["removed"] == [directory_of(root, 1).name]
    left = client().list_objects_v2(Bucket="checkpoints-cli", Prefix=f"runs/{RUN}/step-000000001-")
    assert left["KeyCount"] == 0


def test_of_a_file_only_the_head_is_fetched(root: Path) -> None:
    """A look at a checkpoint of hundreds of gigabytes costs a few kilobytes."""
    with S3StandIn() as server:
        env = {
            "AWS_ACCESS_KEY_ID": "x",
            "AWS_SECRET_ACCESS_KEY": "y",
            "AWS_DEFAULT_REGION": "us-east-1",
            "AWS_ENDPOINT_URL": server.url,
        }
        for name, (_, body) in everything(root).items():
            server.objects[f"runs/{RUN}/{name}"] = body
        told = checkpoints("show", f"s3://bucket/runs/{RUN}", "--json", env=env)
        reads = [c for c in server.calls if c.key.endswith(".safetensors") and c.method == "GET"]
    assert told.code == 0, told.err
    head = int.from_bytes(file_of(root, 3).read_bytes()[:8], "little")
    ranges = [call.headers["range"] for call in reads]
    assert ranges == ["bytes=0-7", f"bytes=8-{7 + head}"]
