# SPDX-License-Identifier: Apache-2.0
"""The S3 sink of the benchmarks: a link of a given speed, and enough of S3 for boto3 and obstore."""

from __future__ import annotations

import http.client
import io
import json
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import boto3
import pytest
from boto3.s3.transfer import TransferConfig
from botocore.config import Config
from botocore.exceptions import ClientError

_SINK = Path(__file__).parent.parent / "benchmarks" / "_sink.py"
_PART = 5 * 2**20
_BULK = bytes(range(256)) * (12 * 2**20 // 256)


class Link:
    """A sink that was started, and a client of it."""

    def __init__(self, port: int) -> None:
        self.endpoint = f"http://127.0.0.1:{port}"
        self.client: Any = boto3.session.Session().client(
            "s3",
            endpoint_url=self.endpoint,
            region_name="us-east-1",
            aws_access_key_id="x",
            aws_secret_access_key="x",
            config=Config(max_pool_connections=16, retries={"total_max_attempts": 1}),
        )

    def stats(self) -> dict[str, Any]:
        """Return what the sink counts."""
        with urllib.request.urlopen(f"{self.endpoint}/_stats") as answer:
            told: dict[str, Any] = json.load(answer)
        return told

    def upload(self, key: str, body: bytes) -> None:
        """Store in parts."""
        config = TransferConfig(multipart_threshold=_PART, multipart_chunksize=_PART)
        self.client.upload_fileobj(io.BytesIO(body), "b", key, Config=config)

    def body(self, key: str, **options: str) -> bytes:
        """Fetch an object."""
        got: bytes = self.client.get_object(Bucket="b", Key=key, **options)["Body"].read()
        return got

    def refusal(self, deed: str, **options: Any) -> str:
        """Return the code with which a deed is refused."""
        with pytest.raises(ClientError) as caught:
            getattr(self.client, deed)(Bucket="b", **options)
        return str(caught.value.response["Error"]["Code"])


Start = Callable[..., Link]


@pytest.fixture
def start() -> Iterator[Start]:
    """Return a maker of sinks, each a process that ends with the test."""
    made: list[subprocess.Popen[bytes]] = []

    def starter(*options: str) -> Link:
        command = [sys.executable, str(_SINK), "--until-eof", *options]
        made.append(subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE))
        assert made[-1].stdout is not None
        return Link(int(made[-1].stdout.readline()))

    yield starter
    for process in made:
        process.communicate(timeout=10)  # it closes stdin, which ends the sink
        assert process.returncode == 0


def test_what_is_put_in_parts_comes_back(start: Start) -> None:
    """A kept object of several parts is the same bytes again, whole and by ranges across parts."""
    link = start("--rate", "0", "--keep")
    link.upload("run/å & b", _BULK)
    assert link.body("run/å & b") == _BULK
    assert link.body("run/å & b", Range=f"bytes={_PART - 3}-{_PART + 2}") == _BULK[_PART - 3 : _PART + 3]
    assert link.body("run/å & b", Range="bytes=-5") == _BULK[-5:]
    assert link.refusal("get_object", Key="run/å & b", Range=f"bytes={len(_BULK)}-") == "InvalidRange"


def test_a_body_in_chunks_is_unwrapped(start: Start) -> None:
    """Signed chunks with a trailer arrive as what is in them; without a told length they are refused."""
    link = start("--rate", "0", "--keep")
    connection = http.client.HTTPConnection(link.endpoint.removeprefix("http://"))
    body = b"6;chunk-signature=00\r\nabcdef\r\n3\r\nghi\r\n0\r\nx-amz-checksum-crc32: AA==\r\n\r\n"
    aws = {"Content-Encoding": "aws-chunked", "X-Amz-Decoded-Content-Length": "9"}
    connection.request("PUT", "/b/chunked", body=body, headers=aws)
    assert connection.getresponse().read() == b""
    assert link.body("chunked") == b"abcdefghi"
    connection.request("PUT", "/b/unsaid", body=iter([b"abc"]), encode_chunked=True)
    assert b"MissingContentLength" in connection.getresponse().read()
    connection.request("GET", "/b/chunked")
    assert connection.getresponse().read() == b"abcdefghi"
    connection.close()


def test_without_keep_bulk_is_only_counted(start: Start) -> None:
    """The size of a large object is known and its bytes are refused by name; a small one is kept whole."""
    link = start("--rate", "0")
    link.upload("bulk", _BULK)
    link.client.put_object(Bucket="b", Key="run/LATEST", Body=b"it")
    assert link.client.head_object(Bucket="b", Key="bulk")["ContentLength"] == len(_BULK)
    assert link.refusal("get_object", Key="bulk") == "Discarded"
    assert link.body("run/LATEST") == b"it"
    assert link.stats()["latest_put_at"]["b/run/LATEST"] <= time.monotonic()


def test_conditions_are_enforced(start: Start) -> None:
    """A put that wants no object, or another version of it, is refused with 412 and changes nothing."""
    link = start("--rate", "0")
    assert link.refusal("get_object", Key="o") == "NoSuchKey"
    assert link.refusal("put_object", Key="o", Body=b"0", IfMatch='"1"') == "PreconditionFailed"
    first = link.client.put_object(Bucket="b", Key="o", Body=b"1", IfNoneMatch="*")["ETag"]
    assert link.refusal("put_object", Key="o", Body=b"2", IfNoneMatch="*") == "PreconditionFailed"
    second = link.client.put_object(Bucket="b", Key="o", Body=b"2", IfMatch=first)["ETag"]
    assert link.refusal("put_object", Key="o", Body=b"3", IfMatch=first) == "PreconditionFailed"
    assert (link.body("o"), link.client.head_object(Bucket="b", Key="o")["ETag"]) == (b"2", second)


def test_parts_must_be_as_s3_wants_them(start: Start) -> None:
    """Parts unsent, out of order or too small make no object; an abandoned upload can be found."""
    link = start("--rate", "0")
    client = link.client
    number = client.create_multipart_upload(Bucket="b", Key="o")["UploadId"]
    same = {"Key": "o", "UploadId": number}
    tags = [client.upload_part(Bucket="b", **same, PartNumber=n, Body=b"small")["ETag"] for n in (1, 2)]
    parts = [{"PartNumber": n, "ETag": tag} for n, tag in enumerate(tags, 1)]

    def refusal(named: list[dict[str, Any]]) -> str:
        return link.refusal("complete_multipart_upload", **same, MultipartUpload={"Parts": named})

    assert refusal(parts) == "EntityTooSmall"
    assert refusal(parts[::-1]) == "InvalidPartOrder"
    assert refusal([{"PartNumber": 3, "ETag": tags[0]}]) == "InvalidPart"
    found = client.list_multipart_uploads(Bucket="b", Prefix="o")["Uploads"]
    assert [upload["UploadId"] for upload in found] == [number]
    client.abort_multipart_upload(Bucket="b", **same)
    assert "Uploads" not in client.list_multipart_uploads(Bucket="b")
    assert refusal(parts) == "NoSuchUpload"


def test_a_listing_has_pages_and_deletes_shorten_it(start: Start) -> None:
    """All objects below a prefix are listed, page by page, and none that was deleted."""
    link = start("--rate", "0")
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda n: link.client.put_object(Bucket="b", Key=f"a/{n}", Body=b""), range(1001)))
    link.client.put_object(Bucket="b", Key="c", Body=b"")
    link.client.delete_object(Bucket="b", Key="a/0")
    link.client.delete_objects(Bucket="b", Delete={"Objects": [{"Key": "a/1"}, {"Key": "a/2"}]})
    pages = list(link.client.get_paginator("list_objects_v2").paginate(Bucket="b", Prefix="a/", MaxKeys=500))
    names = [item["Key"] for page in pages for item in page["Contents"]]
    assert names == sorted(f"a/{n}" for n in range(3, 1001))
    assert len(pages) == 2


def test_obstore_writes_and_reads(start: Start) -> None:
    """What obstore puts in parts, lists, fetches by range, makes on condition and deletes is understood."""
    obstore = pytest.importorskip("obstore")
    stores = pytest.importorskip("obstore.store")
    link = start("--rate", "0", "--keep")
    store = stores.S3Store(
        "b",
        endpoint=link.endpoint,
        region="us-east-1",
        access_key_id="x",
        secret_access_key="x",
        client_options={"allow_http": True},
    )
    obstore.put(store, "a/o", _BULK, use_multipart=True, chunk_size=_PART)
    assert (
        bytes(obstore.get_range(store, "a/o", start=_PART - 1, end=_PART + 1)) == _BULK[_PART - 1 : _PART + 1]
    )
    assert [(item["path"], item["size"]) for page in obstore.list(store, "a") for item in page] == [
        ("a/o", len(_BULK))
    ]
    with pytest.raises(obstore.exceptions.AlreadyExistsError):
        obstore.put(store, "a/o", b"", mode="create")
    obstore.delete(store, "a/o")
    with pytest.raises(FileNotFoundError):
        obstore.head(store, "a/o")


@pytest.mark.parametrize("connections", [1, 8])
def test_the_link_is_never_faster_than_its_rate(start: Start, connections: int) -> None:
    """Bodies of all connections and both directions together take no less time than the rate allows."""
    link = start("--rate", "100", "--keep")
    size = 12_000_000 // connections
    with ThreadPoolExecutor(connections) as pool:
        keys = [f"o{number}" for number in range(connections)]
        before = link.stats()["bytes"]
        begun = time.monotonic()
        list(pool.map(lambda key: link.client.put_object(Bucket="b", Key=key, Body=_BULK[:size]), keys))
        assert [len(body) for body in pool.map(link.body, keys)] == [size] * connections
        took = time.monotonic() - begun
    assert link.stats()["bytes"] - before == 2 * size * connections
    # What was asked for is not there earlier than 8 ms, the credit of a link that was late itself.
    assert took >= 2 * size * connections / 100e6 - 0.01
