# SPDX-License-Identifier: Apache-2.0
"""Large bodies by obstore: bit-exact, boto3's address and credentials, nothing left when it fails."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator

import pytest

from spotwatch.errors import CheckpointCorrupt, RunTaken, StoreError, StoreMissing
from spotwatch.train.parts import Held
from spotwatch.train.stores.bulk_obstore import ObstoreBulk
from spotwatch.train.stores.pacing import Pace
from spotwatch.train.stores.s3_bucket import Bucket
from tests.train.bulk_help import PART_BYTES, crcs_of, nothing, shared, wait_for
from tests.train.s3_stand_in import Call, Reply, S3StandIn, refusal

pytestmark = pytest.mark.usefixtures("made_up_keys")

KEY = "prefix/run/step-1/rank-00000.safetensors"


def bulk_on(server: S3StandIn, *, rate: float | None = None, retries: int = 3) -> ObstoreBulk:
    """Return what is tested."""
    return ObstoreBulk(Bucket("bulk", {"endpoint_url": server.url}), Pace(rate), retries=retries)


def once(when: Callable[[Call], bool], reply: Reply) -> Callable[[Call], Reply | None]:
    """Return a fault that strikes each part once."""
    struck: set[int | None] = set()

    def fault(call: Call) -> Reply | None:
        if not when(call) or call.part in struck:
            return None
        struck.add(call.part)
        return reply

    return fault


def test_a_body_arrives_bit_by_bit_with_the_checksum_of_each_part(server: S3StandIn) -> None:
    """Nineteen parts and a rest: the object, the checksums, and progress that only grows."""
    body = shared(19 * PART_BYTES + 77)
    told: list[int] = []

    assert bulk_on(server).upload(KEY, body, told.append) == crcs_of(body)
    assert server.objects[KEY] == bytes(body.view)
    assert [len(call.body) for call in server.sent(20)] == [77]
    assert told == sorted(told)
    assert told[-1] >= body.size_bytes


def test_progress_counts_no_part_that_has_not_left(server: S3StandIn) -> None:
    """While the server holds the first parts back, no more is claimed to have left than it has got."""
    held, told = threading.Event(), list[int]()

    def fault(_: Call) -> None:
        held.wait(15)

    def on_part(sent_bytes: int) -> None:
        told.append(sent_bytes)
        if len(told) > 2:
            held.set()

    server.fault = lambda call: fault(call) if call.part else None
    bulk_on(server).upload(KEY, shared(20 * PART_BYTES), on_part)

    # Eight parts at once, and the heads of their requests.
    assert max(told[:3]) < 9 * PART_BYTES


def test_a_body_of_one_part_is_left_to_the_store(server: S3StandIn) -> None:
    """Nothing is gained by parts where there is only one."""
    assert bulk_on(server).upload(KEY, shared(PART_BYTES), nothing) is None
    assert server.calls == []


def test_what_progress_raises_ends_the_upload_and_leaves_nothing(server: S3StandIn) -> None:
    """A lost lease in the middle: the caller's own error, the parts removed, no object."""

    def lost(_: int) -> None:
        raise RunTaken("another has gone on")

    server.fault = lambda call: time.sleep(0.6) if call.part else None
    with pytest.raises(RunTaken, match="another has gone on"):
        bulk_on(server).upload(KEY, shared(30 * PART_BYTES), lost)

    assert (server.objects, server.uploads) == ({}, {})


def test_what_progress_raises_at_the_very_end_leaves_no_object(server: S3StandIn) -> None:
    """The last call comes when the object is whole; it is removed again."""
    body = shared(3 * PART_BYTES)

    def lost(sent_bytes: int) -> None:
        if sent_bytes == body.size_bytes:
            raise RunTaken("another has gone on")

    with pytest.raises(RunTaken):
        bulk_on(server).upload(KEY, body, lost)

    assert len(server.sent()) == 3
    assert (server.objects, server.uploads) == ({}, {})


def test_a_server_that_says_nothing_does_not_hold_up_who_wants_to_leave(server: S3StandIn) -> None:
    """The request under way is dropped; that upload never becomes an object."""
    held = threading.Event()

    def hang(call: Call) -> None:
        if call.part:
            held.wait(15)

    def leave(_: int) -> None:
        if server.sent():
            raise KeyboardInterrupt

    server.fault = hang
    begun = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        bulk_on(server).upload(KEY, shared(3 * PART_BYTES), leave)
    took = time.monotonic() - begun
    held.set()

    assert took < 12
    assert server.objects == {}


def test_what_the_body_raises_is_raised_and_leaves_nothing(server: S3StandIn) -> None:
    """A part that cannot be made, as when a tensor is gone, is no trouble of the store."""

    class Failing(Held):
        def parts(self) -> Iterator[memoryview]:
            yield self.view[: self.part_bytes]
            raise ZeroDivisionError("no such tensor")

    whole = shared(4 * PART_BYTES)
    with pytest.raises(ZeroDivisionError, match="no such tensor"):
        bulk_on(server).upload(KEY, Failing(whole.view, whole.part_bytes), nothing)

    assert (server.objects, server.uploads) == ({}, {})


@pytest.mark.parametrize("status", [500, 502, 503])
def test_parts_that_a_busy_server_refuses_are_sent_again(server: S3StandIn, status: int) -> None:
    """Every third part is refused once, and the object is whole."""
    body = shared(9 * PART_BYTES)
    server.fault = once(lambda call: (call.part or 1) % 3 == 0, refusal(status, "SlowDown"))

    assert bulk_on(server).upload(KEY, body, nothing) == crcs_of(body)
    assert server.objects[KEY] == bytes(body.view)
    assert len(server.sent()) == 12


@pytest.mark.parametrize(
    ("status", "code", "advice"),
    [
        (403, "AccessDenied", "check the credentials"),
        (403, "SignatureDoesNotMatch", "the clock"),
        (503, "SlowDown", ""),
    ],
)
def test_a_refusal_names_the_object_and_what_the_store_said(
    server: S3StandIn, status: int, code: str, advice: str
) -> None:
    """The store's code and message are told, and no URL of a request; the parts are removed."""
    server.fault = lambda call: refusal(status, code, "says the store") if call.part == 2 else None

    with pytest.raises(StoreError) as caught:
        bulk_on(server).upload(KEY, shared(4 * PART_BYTES), nothing)

    text = str(caught.value)
    assert text.startswith(f"cannot write s3://bulk/{KEY}: {code} says the store")
    assert advice in text
    assert "uploadId" not in text
    assert (server.objects, server.uploads) == ({}, {})


def test_a_server_that_dies_in_the_middle_is_an_error_soon(server: S3StandIn) -> None:
    """Nobody listens any more: a few tries, then the error, with the thread of the caller free again."""

    def die(call: Call) -> None:
        if call.part == 3:
            threading.Thread(target=server.kill).start()
            time.sleep(0.5)

    server.fault = die
    with pytest.raises(StoreError, match=f"cannot write s3://bulk/{KEY}"):
        bulk_on(server).upload(KEY, shared(6 * PART_BYTES), nothing)


def test_a_bucket_of_another_region_is_left_to_boto3(server: S3StandIn) -> None:
    """boto3 follows such an answer and obstore does not; it is asked once and never again."""
    server.fault = lambda _: Reply(301, "<Error><Code>PermanentRedirect</Code></Error>")
    bulk = bulk_on(server)

    assert bulk.upload(KEY, shared(3 * PART_BYTES), nothing) is None
    asked = len(server.calls)
    assert bulk.upload(KEY, shared(3 * PART_BYTES), nothing) is None
    assert bulk.read_into(KEY, 0, memoryview(bytearray(8))) is False
    assert len(server.calls) == asked


@pytest.mark.parametrize("key", ["run #1/ü x", "a+b/c%20d", "q?a=b&c", "it's/(1)"])
def test_a_key_of_odd_characters_is_the_key_that_boto3_means(server: S3StandIn, key: str) -> None:
    """What one writes, the other finds."""
    bucket = Bucket("bulk", {"endpoint_url": server.url})
    body = shared(2 * PART_BYTES)
    assert ObstoreBulk(bucket, Pace(None)).upload(key, body, nothing)
    assert list(server.objects) == [key]
    assert bucket.size_bytes(key) == body.size_bytes


@pytest.mark.parametrize("key", ["a//b", "./a", "a/../b", "/a", "a\nb"])
def test_a_key_that_obstore_cannot_write_is_left_to_boto3(server: S3StandIn, key: str) -> None:
    """S3 allows it; obstore refuses it or would write another one."""
    bulk = bulk_on(server)
    assert bulk.upload(key, shared(2 * PART_BYTES), nothing) is None
    assert bulk.read_into(key, 0, memoryview(bytearray(8))) is False
    assert server.calls == []


def test_the_pace_holds_back(server: S3StandIn) -> None:
    """Four parts at two parts a second: the last may leave after one second and a half."""
    begun = time.monotonic()
    bulk_on(server, rate=2 * PART_BYTES).upload(KEY, shared(4 * PART_BYTES), nothing)
    assert time.monotonic() - begun >= 1.4


def test_keys_given_for_the_bucket_are_used_and_a_session_token_is_not_mixed_in(
    server: S3StandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spaces has its own keys and endpoint, also where the environment holds some of AWS."""
    monkeypatch.setenv("AWS_SESSION_TOKEN", "of-another-cloud")
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", "http://127.0.0.1:1")
    options = {
        "endpoint_url": server.url,
        "region_name": "nyc3",
        "aws_access_key_id": "SPACESKEY",
        "aws_secret_access_key": "secret",
    }
    assert ObstoreBulk(Bucket("bulk", options), Pace(None)).upload(KEY, shared(2 * PART_BYTES), nothing)

    for call in server.calls:
        assert "Credential=SPACESKEY/" in call.headers["authorization"]
        assert "/nyc3/s3/" in call.headers["authorization"]
        assert "x-amz-security-token" not in call.headers


def test_temporary_credentials_of_the_environment_are_sent_whole(
    server: S3StandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A session token belongs to its key."""
    monkeypatch.setenv("AWS_SESSION_TOKEN", "temporary")
    assert bulk_on(server).upload(KEY, shared(2 * PART_BYTES), nothing)
    assert {call.headers["x-amz-security-token"] for call in server.calls} == {"temporary"}


def test_without_credentials_it_is_left_to_boto3_which_says_so(
    server: S3StandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    """boto3's own words about missing credentials are the best there are."""
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    assert bulk_on(server).upload(KEY, shared(2 * PART_BYTES), nothing) is None


def test_a_range_lands_in_its_place(server: S3StandIn) -> None:
    """Bytes from the middle, over several pieces of the stream, and none beside them."""
    whole = shared(5 * 2**20)
    server.objects[KEY] = bytes(whole.view)
    target = bytearray(3 * 2**20 + 2)

    assert bulk_on(server).read_into(KEY, 1001, memoryview(target)[1:-1])
    assert target == b"\0" + whole.view[1001 : 1001 + 3 * 2**20] + b"\0"


def test_what_is_not_there_is_told_from_what_is_too_short(server: S3StandIn) -> None:
    """No object, an object that ends in the range, and one that ends before it."""
    server.objects[KEY] = b"x" * 100
    bulk, target = bulk_on(server), memoryview(bytearray(20))

    with pytest.raises(StoreMissing, match="s3://bulk/none: NoSuchKey"):
        bulk.read_into("none", 0, target)
    with pytest.raises(CheckpointCorrupt, match="ends at byte 100, too early"):
        bulk.read_into(KEY, 90, target)
    for begin in (100, 200):
        with pytest.raises(CheckpointCorrupt, match=f"ends before byte {begin}"):
            bulk.read_into(KEY, begin, target)
    assert bulk.read_into(KEY, 0, target[:0])
    with pytest.raises(StoreMissing):
        bulk.read_into("none", 0, target[:0])


def test_threads_may_read_at_once(server: S3StandIn) -> None:
    """Eight ranges by eight threads, as a download does it."""
    body = shared(8 * PART_BYTES)
    server.objects[KEY] = bytes(body.view)
    bulk, target = bulk_on(server), bytearray(body.size_bytes)

    def read(begin: int) -> None:
        bulk.read_into(KEY, begin, memoryview(target)[begin : begin + PART_BYTES])

    threads = [threading.Thread(target=read, args=(b,)) for b in range(0, body.size_bytes, PART_BYTES)]
    for thread in threads:
        thread.start()
    wait_for(lambda: not any(thread.is_alive() for thread in threads))
    assert target == bytes(body.view)
