# SPDX-License-Identifier: Apache-2.0
"""What an S3 store makes of servers that refuse, lose answers, hang up, or know less than AWS."""

from __future__ import annotations

import itertools
import os
import random
import subprocess
import sys
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from spotwatch.errors import CheckpointCorrupt, ConfigError, StoreConflict, StoreError, StoreMissing
from spotwatch.train import s3_bucket
from spotwatch.train.bulk import Bulk
from spotwatch.train.parts import Body, Held, crc32
from spotwatch.train.s3_bucket import Bucket
from spotwatch.train.store import OnPart
from spotwatch.train.store_s3 import S3Store

from .conftest import S3
from .s3_proxy import FINE, Call, Fault, S3Proxy, proxy_to

_PART_BYTES = 50_000
_numbers = itertools.count()


@pytest.fixture
def proxy(s3: S3) -> Iterator[S3Proxy]:
    """Return a proxy in front of the S3 server."""
    with proxy_to(s3.environ["AWS_ENDPOINT_URL"]) as made:
        yield made


@pytest.fixture
def store(proxy: S3Proxy) -> S3Store:
    """Return an empty store behind the proxy."""
    return _store(proxy.url)


def _store(endpoint: str, name: str = "bucket", bulk: Bulk | None = None) -> S3Store:
    bucket = Bucket(name, {"endpoint_url": endpoint})
    return S3Store(bucket, f"faults/run-{next(_numbers)}", bulk=bulk)


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the pauses between tries be short, and parts small."""
    monkeypatch.setattr(s3_bucket, "_PAUSE_SECONDS", 0.01)
    monkeypatch.setattr("moto.s3.models.S3_UPLOAD_PART_MIN_SIZE", 1)


def _held(size_bytes: int) -> Held:
    return Held(memoryview(os.urandom(size_bytes)), _PART_BYTES)


def _body(store: S3Store, key: str) -> bytes:
    return store.get(key, most_bytes=2**30)


def test_a_store_that_is_too_busy(store: S3Store, proxy: S3Proxy) -> None:
    """Every third part is answered with SlowDown; all arrive, and the trainer's random state is as it was."""
    parts = itertools.count(1)
    slow = Fault(refuse=(503, "SlowDown"))
    proxy.fault = lambda call: slow if call.is_part and next(parts) % 3 == 0 else FINE
    before = random.getstate()
    body = _held(5 * _PART_BYTES + 7)
    store.upload("step/a", body, lambda _: None)
    assert random.getstate() == before
    assert _body(store, "step/a") == body.view
    assert next(parts) > 6 + 1


def test_a_store_that_stays_busy(store: S3Store, proxy: S3Proxy) -> None:
    """One part never arrives: the error says what the store said, and neither object nor parts are left."""
    proxy.fault = lambda call: (
        Fault(refuse=(503, "SlowDown")) if call.is_part and call.query["partNumber"] == ["2"] else FINE
    )
    with pytest.raises(StoreError, match="step/a: SlowDown"):
        store.upload("step/a", _held(3 * _PART_BYTES), lambda _: None)
    assert list(store.list()) == []
    assert store.abort_uploads() == 0


def test_a_refusal_is_not_repeated(store: S3Store, proxy: S3Proxy) -> None:
    """403 is told at once, with what to look at."""
    proxy.fault = lambda _: Fault(refuse=(403, "AccessDenied"))
    with pytest.raises(StoreError, match="AccessDenied no; check the credentials"):
        store.put("LATEST", b"1")
    assert len(proxy.calls) == 1


def test_parts_that_cannot_be_removed_are_told(store: S3Store, proxy: S3Proxy) -> None:
    """The error of the upload has a note about its parts."""
    proxy.fault = lambda call: (
        Fault(refuse=(403, "AccessDenied")) if call.is_part or call.method == "DELETE" else FINE
    )
    with pytest.raises(StoreError, match="cannot write") as caught:
        store.upload("step/a", _held(2 * _PART_BYTES), lambda _: None)
    assert any("what was sent stays in the bucket: cannot abort" in note for note in caught.value.__notes__)


def test_a_lost_answer_to_a_conditional_write(store: S3Store, proxy: S3Proxy) -> None:
    """The second try meets our own first one: that is success, for a new object and for an old one."""
    proxy.once(lambda call: call.method == "PUT", Fault(lose_answer=True))
    version = store.put_if("LEASE", b"mine 1", None)
    proxy.once(lambda call: call.method == "PUT", Fault(lose_answer=True))
    version = store.put_if("LEASE", b"mine 2", version)
    assert store.read("LEASE", most_bytes=9) == (b"mine 2", version)
    assert [call.method for call in proxy.calls].count("PUT") == 4


def test_a_lost_answer_and_a_rival(store: S3Store, proxy: S3Proxy, s3: S3) -> None:
    """When another wrote between our two tries, it is a conflict."""
    key = store.url.removeprefix("s3://bucket/") + "/LEASE"

    def fault(call: Call) -> Fault:
        if call.number == 1:
            s3.client.put_object(Bucket="bucket", Key=key, Body=b"another")
        return Fault(lose_answer=call.number == 0)

    proxy.fault = fault
    with pytest.raises(StoreConflict, match="written by another"):
        store.put_if("LEASE", b"mine", None)


def test_a_write_that_met_another_is_tried_again(store: S3Store, proxy: S3Proxy) -> None:
    """AWS wants 409 ConditionalRequestConflict to be asked again; only if it lasts it is a conflict."""
    busy = Fault(refuse=(409, "ConditionalRequestConflict"))
    proxy.once(lambda call: call.method == "PUT", busy, times=2)
    store.put_if("LEASE", b"mine", None)
    proxy.fault = lambda call: busy if call.method == "PUT" else FINE
    with pytest.raises(StoreConflict):
        store.put_if("LEASE", b"again", store.read("LEASE", most_bytes=9)[1])


@pytest.mark.parametrize("status", [501, 400])
def test_a_store_that_refuses_conditions(store: S3Store, proxy: S3Proxy, status: int) -> None:
    """NotImplemented means that it is not conditional."""
    proxy.fault = lambda call: Fault(refuse=(status, "NotImplemented")) if call.method == "PUT" else FINE
    assert store.is_conditional is False


@pytest.mark.parametrize("ignored", [("if-none-match",), ("if-match",), ("if-match", "if-none-match")])
def test_a_store_that_ignores_conditions(store: S3Store, proxy: S3Proxy, ignored: tuple[str, ...]) -> None:
    """It takes each write and says nothing; the probe sees that, and is made once."""
    proxy.fault = lambda _: Fault(without=ignored)
    assert store.is_conditional is False
    asked = len(proxy.calls)
    assert store.is_conditional is False
    assert len(proxy.calls) == asked
    assert list(store.list()) == []


def test_a_probe_without_an_answer_says_nothing(store: S3Store, proxy: S3Proxy) -> None:
    """Trouble is no answer: the probe is made again when next asked."""
    proxy.fault = lambda call: Fault(refuse=(403, "AccessDenied")) if call.method == "PUT" else FINE
    with pytest.raises(StoreError, match="AccessDenied"):
        _ = store.is_conditional
    proxy.fault = lambda _: FINE
    assert store.is_conditional is True


def test_a_probe_that_may_not_be_deleted(
    store: S3Store, proxy: S3Proxy, caplog: pytest.LogCaptureFixture
) -> None:
    """Who may write but not delete can save; a line says what stays."""
    proxy.fault = lambda call: Fault(refuse=(403, "AccessDenied")) if call.method == "DELETE" else FINE
    assert store.is_conditional is True
    assert ".probe/" in caplog.text


def test_the_last_answer_of_an_upload_is_lost(store: S3Store, proxy: S3Proxy) -> None:
    """The parts were put together, and asked again the server knows of no such upload."""
    faults = [Fault(refuse=(404, "NoSuchUpload")), Fault(lose_answer=True)]
    proxy.fault = lambda call: faults.pop() if call.method == "POST" and "uploadId" in call.query else FINE
    body = _held(_PART_BYTES + 1)
    store.upload("step/a", body, lambda _: None)
    assert _body(store, "step/a") == body.view
    assert not faults


def test_an_upload_that_the_store_has_forgotten(store: S3Store, proxy: S3Proxy) -> None:
    """The last request finds no such upload, and there is no such object: it has failed."""
    proxy.fault = lambda call: (
        Fault(refuse=(404, "NoSuchUpload")) if call.method == "POST" and "uploadId" in call.query else FINE
    )
    with pytest.raises(StoreError, match="NoSuchUpload") as caught:
        store.upload("step/a", _held(_PART_BYTES + 1), lambda _: None)
    assert type(caught.value) is StoreError
    assert list(store.list()) == []


def test_an_upload_that_is_ended_waits_for_no_part(
    store: S3Store, proxy: S3Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Parts that would be sent again in an hour are given up at once."""
    monkeypatch.setattr(s3_bucket, "_PAUSE_SECONDS", 3600.0)
    slow = Fault(refuse=(503, "SlowDown"))
    proxy.fault = lambda call: slow if call.is_part and call.query["partNumber"] != ["1"] else FINE

    def on_part(sent_bytes: int) -> None:
        if sent_bytes:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        store.upload("step/a", _held(6 * _PART_BYTES), on_part)
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
        store.upload("step/a", _held(_PART_BYTES), lambda _: None)
    assert list(store.list()) == []


@pytest.mark.parametrize("cut_bytes", [0, 1, 300_000])
def test_an_answer_that_breaks_off(store: S3Store, proxy: S3Proxy, cut_bytes: int) -> None:
    """A range goes on where it broke, a whole object is read again."""
    body = _held(400_000)
    store.put("step/a", bytes(body.view))
    is_get = lambda call: call.method == "GET"  # noqa: E731
    proxy.once(is_get, Fault(cut_bytes=cut_bytes), times=2)
    target = bytearray(400_000 - 5)
    store.read_into("step/a", 5, memoryview(target))
    assert target == body.view[5:]
    proxy.once(is_get, Fault(cut_bytes=cut_bytes), times=2)
    assert _body(store, "step/a") == body.view


def test_answers_that_always_break_off(store: S3Store, proxy: S3Proxy) -> None:
    """It ends, as trouble with the store and not as a broken object."""
    store.put("step/a", b"x" * 1000)
    proxy.fault = lambda call: Fault(cut_bytes=0) if call.method == "GET" else FINE
    with pytest.raises(StoreError, match="cannot read") as caught:
        store.read_into("step/a", 0, memoryview(bytearray(1000)))
    assert type(caught.value) is StoreError


def test_a_store_without_ranges(store: S3Store, proxy: S3Proxy) -> None:
    """Who sends the whole object instead is found out, never taken for the range."""
    store.put("step/a", b"0123456789")
    proxy.fault = lambda _: Fault(without=("range",))
    target = bytearray(10)
    store.read_into("step/a", 0, memoryview(target))
    assert target == b"0123456789"
    for begin, size in ((2, 8), (0, 5)):
        with pytest.raises(StoreError, match=r"asked for .* sends") as caught:
            store.read_into("step/a", begin, memoryview(bytearray(size)))
        assert not isinstance(caught.value, CheckpointCorrupt)


def test_pages_of_a_listing_are_asked_for(
    store: S3Store, proxy: S3Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every page but the last names the next, and none is asked for twice."""
    monkeypatch.setenv("MOTO_S3_DEFAULT_MAX_KEYS", "7")
    for number in range(20):
        store.put(f"step/{number}", b"")
    assert sorted(e.key for e in store.list()) == sorted(f"step/{number}" for number in range(20))
    tokens = [call.query.get("continuation-token") for call in proxy.calls if "list-type" in call.query]
    assert len(tokens) == 3
    assert tokens[0] is None
    assert tokens[1] != tokens[2]


def test_a_folder_that_a_console_made_is_no_object(store: S3Store, s3: S3) -> None:
    """It has the name of the root itself and no bytes."""
    s3.client.put_object(Bucket="bucket", Key=f"{store._prefix}/", Body=b"")
    store.put("LATEST", b"1")
    assert [e.key for e in store.list()] == ["LATEST"]


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


def test_a_missing_bucket_is_trouble(s3: S3) -> None:
    """It must never look like a fresh run, however one asks."""
    store = _store(s3.environ["AWS_ENDPOINT_URL"], "no-such-bucket")
    asks = (
        lambda: store.get("LATEST", most_bytes=10),
        lambda: store.size_bytes("LATEST"),
        lambda: store.read_into("LATEST", 0, memoryview(bytearray(1))),
        lambda: list(store.list()),
        lambda: store.put_if("LATEST", b"", '"0"'),
    )
    for ask in asks:
        with pytest.raises(StoreError, match="NoSuchBucket") as caught:
            ask()
        assert type(caught.value) is StoreError


def test_nobody_there_is_trouble() -> None:
    """A refused connection is a StoreError that names the object and no secret, after several tries."""
    store = _store("http://127.0.0.1:9")
    with pytest.raises(StoreError, match=f"{store.url}/LATEST") as caught:
        store.get("LATEST", most_bytes=10)
    assert "testing" not in str(caught.value)


def test_who_no_longer_wants_an_answer_gets_none(s3: S3) -> None:
    """A request that is about to be repeated is not, once it has been called off."""
    ended = threading.Event()
    asked: list[int] = []

    def call(_: Any) -> None:
        asked.append(1)
        ended.set()
        raise ConnectionError("gone")

    with pytest.raises(StoreError, match="gone"):
        Bucket("bucket", {}).ask("read", "a", call, ended=ended)
    assert len(asked) == 1


@pytest.mark.parametrize(
    ("endpoint", "is_aws"),
    [
        (None, True),
        ("https://s3.dualstack.eu-west-1.amazonaws.com", True),
        ("https://nyc3.digitaloceanspaces.com", False),
        ("https://amazonaws.com.example.org", False),
        ("http://127.0.0.1:9000", False),
    ],
)
def test_which_stores_get_checksums(
    endpoint: str | None, is_aws: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    """Amazon's own, by the host of the endpoint, also when that comes from a file of the user's."""
    monkeypatch.delenv("AWS_ENDPOINT_URL", raising=False)
    lines = "[default]\nregion = eu-west-1\n" + (f"endpoint_url = {endpoint}\n" if endpoint else "")
    (tmp_path / "config").write_text(lines, encoding="utf-8")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    bucket = Bucket("bucket", {})
    assert bucket.is_aws is is_aws
    assert bucket.client.meta.config.request_checksum_calculation == "when_required"


def test_amazon_is_given_the_checksums(proxy: S3Proxy, monkeypatch: pytest.MonkeyPatch) -> None:
    """What its servers compare is the checksum that we record; moto takes it as AWS does."""
    monkeypatch.setattr(Bucket, "is_aws", property(lambda _: True))
    store = _store(proxy.url)
    body = _held(_PART_BYTES + 9)
    crcs = store.upload("step/a", body, lambda _: None)
    assert crcs == (crc32(body.view[:_PART_BYTES]), crc32(body.view[_PART_BYTES:]))
    store.upload("step/b", _held(9), lambda _: None)
    assert _body(store, "step/a") == body.view


def test_an_endpoint_that_is_none() -> None:
    """It is the user's to mend."""
    store = _store("not a url")
    with pytest.raises(ConfigError, match="check the endpoint"):
        store.get("LATEST", most_bytes=1)


def test_no_object_for_a_version_is_a_conflict(store: S3Store) -> None:
    """AWS says NoSuchKey to If-Match; for us somebody has removed what we read."""
    with pytest.raises(StoreConflict) as caught:
        store.put_if("LEASE", b"1", '"d41d8cd98f00b204e9800998ecf8427e"')
    assert isinstance(caught.value.__cause__, StoreMissing)


class OtherWay:
    """Moves the large bodies that it wants, by another store of the same bucket, and keeps a list of them."""

    def __init__(self, other: S3Store, wants: bool) -> None:
        self.other = other
        self.wants = wants
        self.seen: list[tuple[str, str]] = []

    def prepare(self) -> None:
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
    body = _held(_PART_BYTES + 1)
    faster.prepare()
    crcs = faster.upload("step/a", body, lambda _: None)
    assert crcs == (crc32(body.view[:_PART_BYTES]), crc32(body.view[_PART_BYTES:]))
    target = bytearray(10)
    faster.read_into("step/a", 3, memoryview(target))
    assert target == body.view[3:13]
    faster.close()
    key = f"{store._prefix}/step/a"
    assert way.seen == [("prepare", ""), ("upload", key), ("read_into", key), ("close", "")]


_UPLOADING = """
import sys
from spotwatch.train.parts import Held
from spotwatch.train.s3_bucket import Bucket
from spotwatch.train.store_s3 import S3Store
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
