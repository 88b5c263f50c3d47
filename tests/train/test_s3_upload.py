# SPDX-License-Identifier: Apache-2.0
"""Uploads in parts to servers that are busy, forget or lose answers, and what is left when they fail."""

from __future__ import annotations

import itertools
import random
import subprocess
import sys
import threading

import pytest

from spotwatch.errors import StoreError
from spotwatch.train.parts import Body, crc32
from spotwatch.train.store import OnPart
from spotwatch.train.stores import s3_bucket
from spotwatch.train.stores.s3 import S3Store
from spotwatch.train.stores.s3_bucket import Bucket

from .conftest import S3
from .s3_proxy import FINE, Call, Fault, S3Proxy
from .s3_stores import PART_BYTES, held, store_at, whole

pytestmark = pytest.mark.usefixtures("quick_s3")


@pytest.fixture
def store(proxy: S3Proxy) -> S3Store:
    """Return an empty store behind the proxy."""
    return store_at(proxy.url)


def test_a_store_that_is_too_busy(store: S3Store, proxy: S3Proxy) -> None:
    """Every third part is answered with SlowDown; all arrive, and the trainer's random state is as it was."""
    parts = itertools.count(1)
    slow = Fault(refuse=(503, "SlowDown"))
    proxy.fault = lambda call: slow if call.is_part and next(parts) % 3 == 0 else FINE
    before = random.getstate()
    body = held(5 * PART_BYTES + 7)
    store.upload("step/a", body, lambda _: None)
    assert random.getstate() == before
    assert whole(store, "step/a") == body.view
    assert next(parts) > 6 + 1


def test_a_store_that_stays_busy(store: S3Store, proxy: S3Proxy) -> None:
    """One part never arrives: the error says what the store said, and neither object nor parts are left."""
    proxy.fault = lambda call: (
        Fault(refuse=(503, "SlowDown")) if call.is_part and call.query["partNumber"] == ["2"] else FINE
    )
    with pytest.raises(StoreError, match="step/a: SlowDown"):
        store.upload("step/a", held(3 * PART_BYTES), lambda _: None)
    assert list(store.list()) == []
    assert store.abort_uploads() == 0


def test_parts_that_cannot_be_removed_are_told(store: S3Store, proxy: S3Proxy) -> None:
    """The error of the upload has a note about its parts."""
    proxy.fault = lambda call: (
        Fault(refuse=(403, "AccessDenied")) if call.is_part or call.method == "DELETE" else FINE
    )
    with pytest.raises(StoreError, match="cannot write") as caught:
        store.upload("step/a", held(2 * PART_BYTES), lambda _: None)
    assert any("what was sent stays in the bucket: cannot abort" in note for note in caught.value.__notes__)


def test_the_last_answer_of_an_upload_is_lost(store: S3Store, proxy: S3Proxy) -> None:
    """The parts were put together, and asked again the server knows of no such upload."""
    faults = [Fault(refuse=(404, "NoSuchUpload")), Fault(lose_answer=True)]
    proxy.fault = lambda call: faults.pop() if call.method == "POST" and "uploadId" in call.query else FINE
    body = held(PART_BYTES + 1)
    store.upload("step/a", body, lambda _: None)
    assert whole(store, "step/a") == body.view
    assert not faults


def test_an_upload_that_the_store_has_forgotten(store: S3Store, proxy: S3Proxy) -> None:
    """The last request finds no such upload, and there is no such object: it has failed."""
    proxy.fault = lambda call: (
        Fault(refuse=(404, "NoSuchUpload")) if call.method == "POST" and "uploadId" in call.query else FINE
    )
    with pytest.raises(StoreError, match="NoSuchUpload") as caught:
        store.upload("step/a", held(PART_BYTES + 1), lambda _: None)
    assert type(caught.value) is StoreError
    assert list(store.list()) == []


def test_an_upload_that_is_ended_waits_for_no_part(
    store: S3Store, proxy: S3Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Parts that would be sent again in minutes are given up at once."""
    monkeypatch.setattr(s3_bucket, "_PAUSE_SECONDS", 5.0)
    slow = Fault(refuse=(503, "SlowDown"))
    proxy.fault = lambda call: slow if call.is_part and call.query["partNumber"] != ["1"] else FINE

    def on_part(sent_bytes: int) -> None:
        if sent_bytes:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        store.upload("step/a", held(6 * PART_BYTES), on_part)
    assert store.abort_uploads() == 0


def test_an_upload_that_came_out_short(store: S3Store, proxy: S3Proxy, s3: S3) -> None:
    """The size that the server tells is compared, and an object of another size is removed."""
    key = store.url.removeprefix("s3://bucket/") + "/step/a"

    def fault(call: Call) -> Fault:
        if call.method == "HEAD":
            s3.client.put_object(Bucket="bucket", Key=key, Body=b"short")
        return FINE

    proxy.fault = fault
    with pytest.raises(StoreError, match="has 5 bytes after 50000 were sent"):
        store.upload("step/a", held(PART_BYTES), lambda _: None)
    assert list(store.list()) == []


def test_uploads_of_this_run_alone_are_removed(store: S3Store, s3: S3) -> None:
    """Not those of a run whose name begins alike."""
    root = store.url.removeprefix("s3://bucket/")
    neighbour = f"{root}0/step/a"
    s3.client.create_multipart_upload(Bucket="bucket", Key=neighbour)
    for number in range(3):
        s3.client.create_multipart_upload(Bucket="bucket", Key=f"{root}/step/{number}")
    assert store.abort_uploads() == 3
    left = s3.client.list_multipart_uploads(Bucket="bucket", Prefix=root)["Uploads"]
    assert [upload["Key"] for upload in left] == [neighbour]


def test_a_store_that_cannot_list_uploads(
    store: S3Store, proxy: S3Proxy, caplog: pytest.LogCaptureFixture
) -> None:
    """It has none that we could remove; one line says so."""
    caplog.set_level("INFO")
    proxy.fault = lambda call: Fault(refuse=(501, "NotImplemented")) if "uploads" in call.query else FINE
    assert store.abort_uploads() == 0
    assert "cannot list them" in caplog.text


def test_uploads_that_may_not_be_listed(store: S3Store, proxy: S3Proxy) -> None:
    """403 is trouble, not a store without uploads."""
    proxy.fault = lambda _: Fault(refuse=(403, "AccessDenied"))
    with pytest.raises(StoreError, match="AccessDenied"):
        store.abort_uploads()


def test_amazon_is_given_the_checksums(proxy: S3Proxy, monkeypatch: pytest.MonkeyPatch) -> None:
    """What its servers compare is the checksum that we record; moto takes it as AWS does."""
    monkeypatch.setattr(Bucket, "is_aws", property(lambda _: True))
    store = store_at(proxy.url)
    body = held(PART_BYTES + 9)
    crcs = store.upload("step/a", body, lambda _: None)
    assert crcs == (crc32(body.view[:PART_BYTES]), crc32(body.view[PART_BYTES:]))
    store.upload("step/b", held(9), lambda _: None)
    assert whole(store, "step/a") == body.view


class OtherWay:
    """Moves the large bodies that it wants, by another store of the same bucket, and keeps a list of them."""

    def __init__(self, other: S3Store, wants: bool) -> None:
        self.other = other
        self.wants = wants
        self.seen: list[tuple[str, str]] = []

    def prepare(self, size_bytes: int) -> None:
        """Take note."""
        self.seen.append(("prepare", ""))

    def upload(self, key: str, body: Body, on_part: OnPart) -> tuple[str, ...] | None:
        """Store it, or leave it."""
        self.seen.append(("upload", key))
        return self.other.upload("step/a", body, on_part) if self.wants else None

    def read_into(self, key: str, begin: int, target: memoryview) -> bool:
        """Read it, or leave it."""
        self.seen.append(("read_into", key))
        if self.wants:
            self.other.read_into("step/a", begin, target)
        return self.wants

    def close(self) -> None:
        """Take note."""
        self.seen.append(("close", ""))


@pytest.mark.parametrize("wants", [True, False])
def test_large_bodies_are_offered_to_another_way(store: S3Store, proxy: S3Proxy, wants: bool) -> None:
    """It gets whole keys; what it does not want goes the general way, and all comes back alike."""
    way = OtherWay(store, wants)
    faster = S3Store(store._bucket, store._prefix, bulk=way)
    body = held(PART_BYTES + 1)
    faster.prepare(1)
    crcs = faster.upload("step/a", body, lambda _: None)
    assert crcs == (crc32(body.view[:PART_BYTES]), crc32(body.view[PART_BYTES:]))
    target = bytearray(10)
    faster.read_into("step/a", 3, memoryview(target))
    assert target == body.view[3:13]
    faster.close()
    key = f"{store._prefix}/step/a"
    assert way.seen == [("prepare", ""), ("upload", key), ("read_into", key), ("close", "")]


_UPLOADING = """
import sys
from spotwatch.train.parts import Held
from spotwatch.train.stores.s3_bucket import Bucket
from spotwatch.train.stores.s3 import S3Store
store = S3Store(Bucket("bucket", {"endpoint_url": sys.argv[1]}), sys.argv[2])
store.upload("step/a", Held(memoryview(bytes(900_000)), 50_000), lambda _: None)
"""


def test_parts_of_a_killed_process_are_removed_at_the_next_start(store: S3Store, proxy: S3Proxy) -> None:
    """SIGKILL in the middle: no object, and the next one to look removes the parts."""
    fourth = threading.Event()

    def fault(call: Call) -> Fault:
        if call.is_part and call.query["partNumber"] == ["4"]:
            fourth.set()
        return FINE

    proxy.fault = fault
    command = [sys.executable, "-c", _UPLOADING, proxy.url, store._prefix]
    with subprocess.Popen(command) as process:
        try:
            assert fourth.wait(15)
        finally:
            process.kill()
    proxy.fault = lambda _: FINE
    assert list(store.list()) == []
    assert store.abort_uploads() == 1
    assert store.abort_uploads() == 0
