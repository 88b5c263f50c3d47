# SPDX-License-Identifier: Apache-2.0
"""A mailbox in a bucket: each object on its own, and nothing waited for too long."""

from __future__ import annotations

import asyncio
import threading

import pytest

from spotwatch.errors import ConfigError, Denied, Malformed, ProviderError, Unavailable
from spotwatch.mail import mailbox_bucket
from spotwatch.mail.mailbox_bucket import BucketObjects, bucket_of
from spotwatch.mail.mailbox_client import Fetched
from spotwatch.mail.mailbox_form import MAX_OBJECT_BYTES
from tests.leaks import running_threads
from tests.train.s3_stand_in import Call, Reply, S3StandIn, refusal


async def _one(objects: BucketObjects, etag: str = "") -> Fetched | ProviderError:
    return (await objects.fetch({"a.json": etag}))["a.json"]


def _bucket(stand_in: S3StandIn) -> BucketObjects:
    environ = {"AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b", "AWS_REGION": "us-east-1"}
    return BucketObjects(*bucket_of("s3://mail/fleet", {**environ, "AWS_ENDPOINT_URL": stand_in.url}))


async def test_a_bucket_is_written_and_read() -> None:
    """What is put under the prefix comes back, with the ETag that is asked for next time."""
    with S3StandIn() as stand_in:
        objects = _bucket(stand_in)
        assert await _one(objects) == Fetched(state="missing")
        await objects.put("a.json", b"one")
        found = await _one(objects)
        assert isinstance(found, Fetched)
        assert (found.state, found.body) == ("new", b"one")
        stand_in.fault = lambda call: Reply(304) if "if-none-match" in _lower(call) else None
        assert await _one(objects, '"e1"') == Fetched(state="same", etag='"e1"')
        put = next(call for call in stand_in.calls if call.method == "PUT")
    assert put.key.endswith("fleet/a.json")
    assert _lower(put)["cache-control"] == "no-store"


def _lower(call: Call) -> dict[str, str]:
    return {name.lower(): value for name, value in call.headers.items()}


@pytest.mark.hostile(67, 69)
@pytest.mark.parametrize(
    ("reply", "kind"),
    [
        (refusal(403, "AccessDenied"), Denied),
        (refusal(403, "InvalidAccessKeyId"), Denied),
        (refusal(403, "RequestTimeTooSkewed", "The difference is too large"), Denied),
        (refusal(503, "SlowDown"), Unavailable),
        (refusal(500, "InternalError"), Unavailable),
        (refusal(404, "NoSuchKey"), Fetched),
        (refusal(404, "NoSuchBucket"), Malformed),
        (Reply(200, b"x" * (MAX_OBJECT_BYTES + 1)), Malformed),
        (Reply(200, b""), Fetched),
    ],
)
async def test_what_a_buckets_refusal_is(reply: Reply, kind: type) -> None:
    """Each is asked once, and told apart: what the user must mend, what passes, and what is no letter."""
    with S3StandIn(lambda _: reply) as stand_in:
        found = await _one(_bucket(stand_in))
        assert len(stand_in.calls) == 1
    assert isinstance(found, kind)
    if isinstance(found, Denied):
        assert "clock" in found.mend
    if "NoSuchBucket" in str(reply.body):
        assert isinstance(found, Malformed)
        assert "make the bucket" in found.mend


async def test_without_credentials_it_is_said_where_to_give_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither the environment nor the machine has any: that does not mend itself."""
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", "/dev/null")
    monkeypatch.setenv("AWS_CONFIG_FILE", "/dev/null")
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    with S3StandIn() as stand_in:
        environ = {"AWS_REGION": "us-east-1", "AWS_ENDPOINT_URL": stand_in.url}
        found = await _one(BucketObjects(*bucket_of("s3://mail/fleet", environ)))
        assert stand_in.calls == []
    assert isinstance(found, Denied)
    assert "mailbox_credentials_file" in found.mend


@pytest.mark.parametrize("name", ["Bad_Bucket!", "a", "x" * 64, "-mail", "mail:99999", "my bucket"])
def test_what_is_no_buckets_name_is_refused(name: str) -> None:
    """Before anything is asked: no repetition makes it a name."""
    environ = {"SPACES_KEY": "k", "SPACES_SECRET": "s", "SPACES_REGION": "nyc3"}
    for scheme in ("s3", "spaces"):
        with pytest.raises(ConfigError, match="bucket's name"):
            bucket_of(f"{scheme}://{name}/x", environ)


async def test_a_bucket_that_is_away_is_asked_once_for_all_objects() -> None:
    """A poll of a dead bucket costs one connection, not one for each object."""
    with S3StandIn() as stand_in:
        objects = _bucket(stand_in)
    found = await objects.fetch({"a": "", "b": "", "c": ""})
    assert [type(one) for one in found.values()] == [Unavailable] * 3
    assert len({id(one) for one in found.values()}) == 1
    with pytest.raises(Unavailable):
        await objects.put("a", b"")


@pytest.mark.hostile(62)
async def test_a_bucket_that_says_nothing_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """The loop goes on, a second poll makes no second thread, and it is asked again once it has answered."""
    monkeypatch.setattr(mailbox_bucket, "_ANSWER_SECONDS", 0.3)
    answering = threading.Event()

    def hang(_: Call) -> None:
        answering.wait()

    with S3StandIn(hang) as stand_in:
        objects = _bucket(stand_in)
        before = running_threads()
        first = await _one(objects)
        assert isinstance(first, Unavailable)
        assert "no answer within" in str(first)
        for _ in range(5):
            again = await _one(objects)
            assert isinstance(again, Unavailable)
            assert "earlier request" in str(again)
        # One of ours, and the stand-in's own for the connection.
        assert len(running_threads() - before) <= 2
        answering.set()
        monkeypatch.undo()
        async with asyncio.timeout(15):
            while isinstance(await _one(objects), Unavailable):  # noqa: ASYNC110 - a thread sets no event
                await asyncio.sleep(0.01)


async def test_an_object_that_hangs_keeps_no_other_from_being_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """What was read before it is handed on, what stands behind it is asked for, and so at each later poll."""
    answering = threading.Event()

    def hang_at_b(call: Call) -> Reply | None:
        if call.key.endswith("/b"):
            answering.wait()
            return None
        return Reply(200, call.key[-1:].encode())

    with S3StandIn(hang_at_b) as stand_in:
        objects = _bucket(stand_in)
        # boto3 takes its time for the first of all requests, and that is not what is measured here.
        assert isinstance((await objects.fetch({"a": ""}))["a"], Fetched)
        monkeypatch.setattr(mailbox_bucket, "_ANSWER_SECONDS", 2.0)
        for says in ("no answer within", "earlier request"):
            found = await objects.fetch({"a": "", "b": "", "c": "", "d": ""})
            assert says in str(found["b"])
            good = [one.body for one in found.values() if isinstance(one, Fetched)]
            assert good == [b"a", b"c", b"d"]
        answering.set()


async def test_a_thread_that_cannot_start_is_no_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """At the limit of tasks the mailbox is away, says why, and is read again once there is room."""

    def refuse(self: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with S3StandIn(lambda _: Reply(200, b"one")) as stand_in:
        objects = _bucket(stand_in)
        with monkeypatch.context() as limited:
            limited.setattr(threading.Thread, "start", refuse)
            found = await _one(objects)
        assert isinstance(found, Unavailable)
        assert "TasksMax" in str(found)
        assert isinstance(await _one(objects), Fetched)


@pytest.mark.parametrize("header", [("Content-Length", "many"), ("Last-Modified", "soon")])
async def test_a_bad_header_is_that_objects_fault_alone(header: tuple[str, str]) -> None:
    """What botocore cannot read is malformed, and the objects beside it are read."""

    def answer(call: Call) -> Reply:
        bad = call.key.endswith("/b")
        return Reply(200, b"one", headers=(header,) if bad else ())

    with S3StandIn(answer) as stand_in:
        found = await _bucket(stand_in).fetch({"a": "", "b": "", "c": ""})
    assert [type(one) for one in found.values()] == [Fetched, Malformed, Fetched]
