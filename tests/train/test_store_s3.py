# SPDX-License-Identifier: Apache-2.0
"""What an S3 store makes of servers that refuse, lose answers, hang up, or know less than AWS."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from spotwatch.errors import CheckpointCorrupt, ConfigError, StoreConflict, StoreError, StoreMissing
from spotwatch.train.stores.s3 import S3Store
from spotwatch.train.stores.s3_bucket import Bucket

from .conftest import S3
from .s3_proxy import FINE, Call, Fault, S3Proxy
from .s3_stores import held, store_at, whole

pytestmark = pytest.mark.usefixtures("quick_s3")


@pytest.fixture
def store(proxy: S3Proxy) -> S3Store:
    """Return an empty store behind the proxy."""
    return store_at(proxy.url)


def test_a_refusal_is_not_repeated(store: S3Store, proxy: S3Proxy) -> None:
    """403 is told at once, with what to look at."""
    proxy.fault = lambda _: Fault(refuse=(403, "AccessDenied"))
    with pytest.raises(StoreError, match="AccessDenied no; check the credentials"):
        store.put("LATEST", b"1")
    assert len(proxy.calls) == 1


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


@pytest.mark.parametrize("cut_bytes", [0, 1, 300_000])
def test_an_answer_that_breaks_off(store: S3Store, proxy: S3Proxy, cut_bytes: int) -> None:
    """A range goes on where it broke, a whole object is read again."""
    body = held(400_000)
    store.put("step/a", bytes(body.view))
    is_get = lambda call: call.method == "GET"  # noqa: E731
    proxy.once(is_get, Fault(cut_bytes=cut_bytes), times=2)
    target = bytearray(400_000 - 5)
    store.read_into("step/a", 5, memoryview(target))
    assert target == body.view[5:]
    proxy.once(is_get, Fault(cut_bytes=cut_bytes), times=2)
    assert whole(store, "step/a") == body.view


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
    for begin, size in ((2, 8), (2, 10), (0, 5)):
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


def test_a_missing_bucket_is_trouble(s3: S3) -> None:
    """It must never look like a fresh run, however one asks."""
    store = store_at(s3.environ["AWS_ENDPOINT_URL"], "no-such-bucket")
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
    store = store_at("http://127.0.0.1:9")
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


def test_an_endpoint_that_is_none() -> None:
    """It is the user's to mend."""
    store = store_at("not a url")
    with pytest.raises(ConfigError, match="check the endpoint"):
        store.get("LATEST", most_bytes=1)


def test_no_object_for_a_version_is_a_conflict(store: S3Store) -> None:
    """AWS says NoSuchKey to If-Match; for us somebody has removed what we read."""
    with pytest.raises(StoreConflict) as caught:
        store.put_if("LEASE", b"1", '"d41d8cd98f00b204e9800998ecf8427e"')
    assert isinstance(caught.value.__cause__, StoreMissing)
