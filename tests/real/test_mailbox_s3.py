# SPDX-License-Identifier: Apache-2.0
"""A mailbox in buckets of real S3 servers: read if changed, and with a key that only reads."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import boto3
import pytest
from botocore.exceptions import ClientError

from spotwatch.errors import Denied, Unavailable
from spotwatch.mail.mailbox_bucket import BucketObjects, bucket_of
from spotwatch.mail.mailbox_client import Fetched
from tests.real.s3_servers import BUCKET, KEY, READ_KEY, READ_SECRET, SECRET, S3Server, start

pytestmark = [pytest.mark.real, pytest.mark.timeout(300)]


@pytest.fixture(scope="module", params=["weed", "rclone", "moto"])
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    """Return each server in turn."""
    with start(request.param, tmp_path_factory.mktemp(request.param)) as started:
        yield started


@pytest.fixture(scope="module")
def weed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    """Return the server that knows read-only keys."""
    with start("weed", tmp_path_factory.mktemp("weed-relay")) as started:
        yield started


def _objects(server: S3Server, key: str = KEY, secret: str = SECRET) -> BucketObjects:
    return BucketObjects(*bucket_of(f"s3://{BUCKET}/box", server.environ(key, secret)))


async def test_an_object_is_read_if_it_has_changed(server: S3Server) -> None:
    """Missing, new, the same, changed: each server says so in the way that the client expects."""
    objects, name = _objects(server), "reclaims/1.json"

    async def read(etag: str = "") -> Fetched:
        found = (await objects.fetch({name: etag}))[name]
        assert isinstance(found, Fetched), found
        return found

    assert (await read()).state == "missing"
    await objects.put(name, b"one")
    first = await read()
    assert (first.state, first.body) == ("new", b"one")
    assert first.etag
    assert (await read(first.etag)).state == "same"
    await objects.put(name, b"two, longer")
    second = await read(first.etag)
    assert (second.state, second.body) == ("new", b"two, longer")


async def test_a_wrong_secret_is_denied(server: S3Server) -> None:
    """It is told apart from a bucket that is away."""
    if not server.checks_secrets:
        pytest.skip(f"{server.name} does not check secrets")
    objects = _objects(server, secret="another")
    assert isinstance((await objects.fetch({"a": ""}))["a"], Denied)
    with pytest.raises(Denied):
        await objects.put("a", b"x")


async def test_a_read_only_key_reads_and_cannot_write(weed: S3Server) -> None:
    """What a trainer's machine holds can forge nothing, nor take a letter away."""
    await _objects(weed).put("kept", b"here")
    reader = _objects(weed, READ_KEY, READ_SECRET)
    found = await reader.fetch({"kept": "", "missing": ""})
    assert [one.state for one in found.values() if isinstance(one, Fetched)] == ["new", "missing"]
    with pytest.raises(Denied):
        await reader.put("kept", b"forged")
    client = weed.client()
    with pytest.raises(ClientError):
        _reading(weed).delete_object(Bucket=BUCKET, Key="box/kept")
    assert client.get_object(Bucket=BUCKET, Key="box/kept")["Body"].read() == b"here"


def _reading(server: S3Server) -> Any:
    options = server.options() | {"aws_access_key_id": READ_KEY, "aws_secret_access_key": READ_SECRET}
    return boto3.session.Session().client("s3", **options)


async def test_a_bucket_of_spaces_is_the_same_bucket(weed: S3Server) -> None:
    """By its own variables, and never by the one that names the checkpoints' bucket."""
    environ = {
        "SPACES_KEY": KEY,
        "SPACES_SECRET": SECRET,
        "SPACES_ENDPOINT": weed.endpoint,
        "SPACES_BUCKET": "checkpoints",
    }
    objects = BucketObjects(*bucket_of(f"spaces://{BUCKET}/box", environ))
    await objects.put("by-spaces", b"here")
    found = (await _objects(weed).fetch({"by-spaces": ""}))["by-spaces"]
    assert isinstance(found, Fetched)
    assert found.body == b"here"
    await objects.close()


async def test_a_bucket_that_is_not_there_is_unavailable() -> None:
    """Nobody listens at its endpoint."""
    environ = {
        "AWS_ACCESS_KEY_ID": "a",
        "AWS_SECRET_ACCESS_KEY": "b",
        "AWS_ENDPOINT_URL": "http://127.0.0.1:1",
    }
    objects = BucketObjects(*bucket_of("s3://nowhere", environ | {"AWS_REGION": "us-east-1"}))
    assert isinstance((await objects.fetch({"a": ""}))["a"], Unavailable)
