# SPDX-License-Identifier: Apache-2.0
"""Pushed notices: whose they are, what they are worth, how long they last; and who this Droplet is.

The metadata service is a real one on loopback. It does not test signatures' forms or the listener.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from spotwatch.errors import Malformed, ProviderError, Unavailable
from spotwatch.model import Answer, Certainty, Evidence, Kind, Notice, to_rfc3339
from spotwatch.providers import Context, Identified, Received, Receiver, Verdict
from spotwatch.providers._do_identity import parse_id
from spotwatch.providers.digitalocean import Config, DigitalOcean
from spotwatch.server import WebhookServer
from spotwatch.testing import FakeClock
from spotwatch.webhooks import signed_headers

SECRET = bytes(range(32))
OURS = 512345678
MILLISECOND = timedelta(milliseconds=1)
"""Moments are kept to that."""
KEYS = {
    "id": str(OURS),
    "hostname": "spot-trainer-01",
    "region": "atl1",
    "tags/": "spot\ntraining",
    "interfaces/public/0/ipv4/address": "203.0.113.7",
    "interfaces/private/0/ipv4/address": "10.132.0.7",
    "interfaces/public/0/ipv6/address": "2001:db8::7",
}


@dataclass(slots=True)
class Metadata:
    """A Droplet's metadata service, with what was asked of it."""

    keys: dict[str, str | bytes] = field(default_factory=lambda: dict(KEYS))
    status: int = 200
    location: str = ""
    asked: list[str] = field(default_factory=list)
    open: asyncio.Event = field(default_factory=asyncio.Event)
    endpoint: str = ""

    async def answer(self, request: web.BaseRequest) -> web.StreamResponse:
        """Answer one key; wait first when told to."""
        self.asked.append(request.path)
        await self.open.wait()
        key = request.path.removeprefix("/metadata/v1/")
        if self.location:
            raise web.HTTPFound(self.location)
        if self.status != 200:
            return web.Response(status=self.status)
        if key not in self.keys:
            return web.Response(status=404)
        value = self.keys[key]
        return web.Response(body=value if isinstance(value, bytes) else value.encode())


@pytest.fixture
async def metadata() -> AsyncIterator[Metadata]:
    """Return a running metadata service."""
    played = Metadata()
    played.open.set()
    runner = web.ServerRunner(web.Server(played.answer), shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    played.endpoint = f"http://127.0.0.1:{runner.addresses[0][1]}"
    yield played
    await runner.cleanup()


@dataclass(slots=True)
class Desk:
    """A provider in use, and the sender of its messages."""

    provider: DigitalOcean
    clock: FakeClock
    sent: int = 0

    async def push(
        self, body: bytes | dict[str, Any], *, webhook_id: str = "", signed: datetime | None = None
    ) -> Verdict:
        """Send a signed message."""
        self.sent += 1
        raw = body if isinstance(body, bytes) else json.dumps(body).encode()
        stamp = int((signed or self.clock.now()).timestamp())
        made = signed_headers(SECRET, webhook_id or f"msg_{self.sent}", stamp, raw)
        return await self.provider.receive(Received(headers=made, body=raw))

    async def reclaim(self, minutes: float | None = None, **subject: Any) -> Verdict:
        """Send a reclaim for `minutes` from now; of this Droplet unless told otherwise."""
        row: dict[str, Any] = {"event": "reclaim", **(subject or {"droplet_id": OURS})}
        if minutes is not None:
            row["at"] = to_rfc3339(self.clock.now() + timedelta(minutes=minutes))
        return await self.push(row)

    async def cancel(self, **subject: Any) -> Verdict:
        """Send a cancel."""
        return await self.push({"event": "cancel", **(subject or {"droplet_id": OURS})})

    async def ask(self) -> Answer:
        """Poll."""
        return await self.provider.notices()

    async def only(self) -> Notice:
        """Poll, and return the one notice."""
        [notice] = (await self.ask()).notices
        return notice

    def skip(self, **time: float) -> None:
        """Let the wall clock move on."""
        self.clock.wall_offset_seconds += timedelta(**time).total_seconds()


@dataclass(slots=True)
class Shop:
    """Makes desks, each a life of the daemon on the same state directory."""

    metadata: Metadata
    tmp_path: Path
    clock: FakeClock = field(default_factory=FakeClock)

    def open(self, *, secrets: tuple[bytes, ...] = (SECRET,), kept: bool = True, **config: Any) -> Desk:
        """Return a provider that is not entered yet."""
        context = Context(
            clock=self.clock,
            runtime_dir=self.tmp_path,
            state_dir=self.tmp_path if kept else None,
            webhook_secrets=secrets,
        )
        return Desk(DigitalOcean(Config(endpoint=self.metadata.endpoint, **config), context), self.clock)


@pytest.fixture
def shop(metadata: Metadata, tmp_path: Path) -> Shop:
    """Return a shop."""
    return Shop(metadata, tmp_path)


@pytest.fixture
async def desk(shop: Shop) -> AsyncIterator[Desk]:
    """Return an entered provider that knows who it is."""
    made = shop.open()
    async with made.provider:
        assert (await made.ask()).failed == {}
        yield made


async def until(condition: Callable[[], bool]) -> None:
    """Wait for a condition with a time limit."""
    async with asyncio.timeout(15):
        while not condition():  # noqa: ASYNC110 - what is awaited has no event of its own
            await asyncio.sleep(0.01)


async def test_a_signed_reclaim_is_a_notice(desk: Desk) -> None:
    """It carries the time given, as a target within two hours."""
    before = desk.clock.now()
    verdict = await desk.reclaim(90)
    after = desk.clock.now()
    notice = await desk.only()
    assert (verdict.status, verdict.result) == (202, "accepted")
    assert (notice.kind, notice.certainty, notice.signal) == (Kind.RECLAIM, Certainty.TARGET, "webhook")
    assert (notice.evidence, notice.window_seconds, notice.is_final) == (Evidence.STRONG, 7200.0, True)
    assert notice.id.startswith(f"digitalocean:{OURS}:reclaim:")
    assert notice.deadline is not None
    assert before - MILLISECOND <= notice.deadline - timedelta(minutes=90) <= after
    assert notice.issued_at is not None


async def test_a_push_comes_through_the_listener(desk: Desk) -> None:
    """Headers in any case, over HTTP, end as a notice; the same once more is a duplicate."""
    results: list[tuple[str, str]] = []
    server = WebhookServer(
        "127.0.0.1:0",
        receivers={"digitalocean": desk.provider},
        on_request=lambda name, result: results.append((name, result)),
        say=lambda line: None,
    )
    await server.start()
    body = json.dumps({"event": "reclaim", "droplet_id": OURS}).encode()
    made = signed_headers(SECRET, "msg_x", int(desk.clock.now().timestamp()), body)
    url = f"http://127.0.0.1:{server.port}/webhook/digitalocean"
    try:
        async with aiohttp.ClientSession() as session:
            for headers in (made, {name.title(): value for name, value in made.items()}, {}):
                async with session.post(url, data=body, headers=headers) as response:
                    assert await response.text() == f"{response.status}\n"
    finally:
        await server.close()
    assert [result for _, result in results] == ["accepted", "duplicate", "unsigned"]
    assert (await desk.only()).evidence is Evidence.STRONG


async def test_the_poll_wakes_at_once(shop: Shop) -> None:
    """What arrives is not left until the interval is over."""
    desk = shop.open(interval_seconds=60.0)
    async with desk.provider:
        await desk.ask()
        waiting = asyncio.create_task(desk.provider.wait())
        await desk.reclaim()
        async with asyncio.timeout(15):
            await waiting
        assert (await desk.ask()).notices


async def test_without_a_push_the_interval_passes(shop: Shop) -> None:
    """The inbox is looked at all the same: a level, not an edge."""
    desk = shop.open(interval_seconds=0.05)
    async with desk.provider:
        await desk.ask()
        async with asyncio.timeout(15):
            await desk.provider.wait()


@pytest.mark.parametrize(("minutes", "wanted"), [(None, 7200), (300, 7200), (30, 1800), (-180, -10800)])
async def test_no_time_is_two_hours_and_none_is_farther(
    desk: Desk, minutes: float | None, wanted: float
) -> None:
    """A missing time is the two hours aimed at; a past one is passed on as it is."""
    before = desk.clock.now()
    await desk.reclaim(minutes)
    after = desk.clock.now()
    notice = await desk.only()
    assert notice.deadline is not None
    assert before - MILLISECOND <= notice.deadline - timedelta(seconds=wanted) <= after


async def test_for_one_event_the_earliest_time_counts(desk: Desk) -> None:
    """Pushes under other ids, with earlier and later times, are one notice with one id."""
    await desk.reclaim(60)
    first = await desk.only()
    assert (await desk.reclaim(30)).result == "accepted"
    earlier = await desk.only()
    assert (await desk.reclaim(90)).result == "duplicate"
    assert (await desk.only()) == earlier
    assert earlier.id == first.id
    assert earlier.deadline is not None
    assert first.deadline is not None
    assert earlier.deadline < first.deadline


@pytest.mark.parametrize(
    ("subject", "wanted"),
    [
        ({"droplet_id": OURS}, "strong"),
        ({"droplet_id": str(OURS)}, "strong"),
        ({"droplet_id": OURS, "name": "SPOT-trainer-01"}, "strong"),
        ({"droplet_id": OURS, "name": "listed"}, "strong"),
        ({"name": "Listed"}, "strong"),
        ({"name": "Spot-Trainer-01"}, "weak"),
        ({"droplet_id": OURS, "name": "spot-trainer-02"}, "weak"),
        ({"name": None, "droplet_id": None}, "weak"),
        ({"droplet_id": OURS + 1}, "not_mine"),
        ({"droplet_id": OURS + 1, "name": "listed"}, "not_mine"),
        ({"name": "spot-trainer-0"}, "not_mine"),
        ({"name": "spot-trainer-011"}, "not_mine"),
        ({"name": "spot-trainer-01-old"}, "not_mine"),
        ({"name": "my.spot-trainer-01"}, "not_mine"),
        ({"name": " spot-trainer-01"}, "not_mine"),
        ({"name": "\u017fpot-trainer-01"}, "weak"),
    ],
)
async def test_whom_a_message_concerns(shop: Shop, subject: dict[str, Any], wanted: str) -> None:
    """The number or a listed name may stop; a hostname, or a contradiction, may only flush."""
    desk = shop.open(names=("listed",))
    async with desk.provider:
        await desk.ask()
        verdict = await desk.reclaim(**subject)
        answer = await desk.ask()
    if wanted == "not_mine":
        assert (verdict.status, verdict.result, answer.notices) == (200, "not_mine", ())
    else:
        assert verdict.status == 202
        assert [n.evidence.value for n in answer.notices] == [wanted]


async def test_what_is_proven_is_a_notice_of_its_own(desk: Desk) -> None:
    """A weak notice with an earlier time and a strong one are two, so that neither moves the other."""
    await desk.reclaim(10, name="spot-trainer-01")
    weak = await desk.only()
    await desk.reclaim(90)
    strong, still_weak = (await desk.ask()).notices
    assert (strong.evidence, weak.evidence) == (Evidence.STRONG, Evidence.WEAK)
    assert strong.id != weak.id
    assert still_weak == weak
    assert strong.deadline is not None
    assert strong.deadline - desk.clock.now() > timedelta(minutes=89)


async def test_a_cancel_ends_the_notice_and_the_next_reclaim_is_another(desk: Desk) -> None:
    """The id of what was cancelled is told, and is never used again."""
    await desk.reclaim()
    first = await desk.only()
    assert (await desk.cancel()).result == "accepted"
    answer = await desk.ask()
    assert answer.notices == ()
    assert answer.cancelled == {first.id}
    await desk.reclaim()
    second = await desk.only()
    assert second.id != first.id


async def test_a_weak_cancel_does_not_end_a_strong_notice(desk: Desk) -> None:
    """What may not stop may not disarm either."""
    await desk.reclaim()
    verdict = await desk.cancel(name="spot-trainer-01")
    assert (verdict.status, verdict.result) == (409, "refused")
    assert (await desk.only()).evidence is Evidence.STRONG


async def test_order_is_by_signature_not_by_arrival(desk: Desk) -> None:
    """A reclaim signed before a cancel that overtook it stays cancelled, and the other way round."""
    earlier = desk.clock.now() - timedelta(seconds=60)
    await desk.cancel()
    late = await desk.push({"event": "reclaim", "droplet_id": OURS}, signed=earlier)
    assert (late.status, late.result) == (200, "duplicate")
    assert (await desk.ask()).notices == ()
    await desk.reclaim()
    old = await desk.push({"event": "cancel", "droplet_id": OURS}, signed=earlier)
    assert (old.status, old.result) == (200, "duplicate")
    assert len((await desk.ask()).notices) == 1


@pytest.mark.hostile(12)
async def test_the_same_request_a_thousand_times_is_one_notice(desk: Desk) -> None:
    """All are answered 2xx, and one has an effect."""
    row = {"event": "reclaim", "droplet_id": OURS}
    verdicts = await asyncio.gather(*(desk.push(row, webhook_id="msg_x") for _ in range(1000)))
    assert sorted({(v.status, v.result) for v in verdicts}) == [(200, "duplicate"), (202, "accepted")]
    assert sum(v.result == "accepted" for v in verdicts) == 1
    assert len((await desk.ask()).notices) == 1


@pytest.mark.hostile(13)
async def test_one_id_with_two_bodies_is_refused(desk: Desk) -> None:
    """The id names the message."""
    await desk.push({"event": "reclaim", "droplet_id": OURS}, webhook_id="msg_x")
    verdict = await desk.push({"event": "cancel", "droplet_id": OURS}, webhook_id="msg_x")
    assert (verdict.status, verdict.result) == (409, "replayed")
    assert (await desk.ask()).notices


async def test_unsigned_and_old_requests_are_401_and_no_notice(desk: Desk) -> None:
    """The body is not even parsed, and an old one is told apart for the metrics."""
    body = json.dumps({"event": "reclaim", "droplet_id": OURS}).encode()
    unsigned = await desk.provider.receive(Received(headers={}, body=body))
    garbage = await desk.provider.receive(Received(headers={}, body=b"[" * 20_000))
    stale = await desk.push(body, signed=desk.clock.now() - timedelta(seconds=301))
    assert (unsigned, garbage) == (Verdict(status=401, result="unsigned"),) * 2
    assert stale == Verdict(status=401, result="replayed")
    assert (await desk.ask()).notices == ()


HOSTILE = {
    "deep": b"[" * 20_000,
    "long int": b'{"event": "reclaim", "droplet_id": ' + b"1" * 6000 + b"}",
    "nan": b'{"event": "reclaim", "droplet_id": NaN}',
    "infinite": b'{"event": "reclaim", "droplet_id": 1e999}',
    "twice": b'{"event": "cancel", "event": "reclaim", "droplet_id": 512345678}',
    "utf-16": '{"event": "reclaim"}'.encode("utf-16"),
    "surrogate": b'{"event": "reclaim", "name": "\\ud800"}',
    "list": b'[{"event": "reclaim"}]',
    "string": b'"reclaim"',
    "null": b"null",
    "empty": b"",
    "nothing in it": b"{}",
    "another event": b'{"event": "reboot", "droplet_id": 512345678}',
    "event null": b'{"event": null, "droplet_id": 512345678}',
    "event list": b'{"event": ["reclaim"]}',
    "float id": b'{"event": "reclaim", "droplet_id": 512345678.0}',
    "true id": b'{"event": "reclaim", "droplet_id": true}',
    "zero id": b'{"event": "reclaim", "droplet_id": 0}',
    "negative id": b'{"event": "reclaim", "droplet_id": -512345678}',
    "huge id": b'{"event": "reclaim", "droplet_id": 99999999999999999999}',
    "words id": b'{"event": "reclaim", "droplet_id": "512345678 "}',
    "arabic id": '{"event": "reclaim", "droplet_id": "٥١٢"}'.encode(),
    "name list": b'{"event": "reclaim", "name": ["a"]}',
    "long name": b'{"event": "reclaim", "name": "' + b"a" * 256 + b'"}',
    "naive": b'{"event": "reclaim", "droplet_id": 512345678, "at": "2026-11-29T15:00:00"}',
    "date": b'{"event": "reclaim", "droplet_id": 512345678, "at": "2026-11-29"}',
    "soon": b'{"event": "reclaim", "droplet_id": 512345678, "at": "in 2 hours"}',
    "seconds": b'{"event": "reclaim", "droplet_id": 512345678, "at": 1764428400}',
    "end of time": b'{"event": "reclaim", "droplet_id": 512345678, "at": "9999-12-31T23:59:59-23:59"}',
    "30 February": b'{"event": "reclaim", "droplet_id": 512345678, "at": "2026-02-30T00:00:00Z"}',
}


@pytest.mark.hostile(21, 23)
@pytest.mark.parametrize("body", HOSTILE.values(), ids=HOSTILE.keys())
async def test_hostile_json_is_400_even_when_signed(desk: Desk, body: bytes) -> None:
    """Never a 500, never a notice, and a repaired message under the same id still counts."""
    verdict = await desk.push(body, webhook_id="msg_x")
    assert verdict == Verdict(status=400, result="malformed")
    assert (await desk.ask()).notices == ()
    repaired = await desk.push({"event": "reclaim", "droplet_id": OURS}, webhook_id="msg_x")
    assert repaired.status == 202


@pytest.mark.hostile(14)
async def test_a_restart_keeps_notice_and_memory(shop: Shop) -> None:
    """The mail is not sent twice, and a captured request is worth nothing later."""
    first = shop.open()
    async with first.provider:
        await first.ask()
        await first.push({"event": "reclaim", "droplet_id": OURS}, webhook_id="msg_x")
        notice = await first.only()
    second = shop.open()
    async with second.provider:
        assert (await second.only()) == notice
        again = await second.push({"event": "reclaim", "droplet_id": OURS}, webhook_id="msg_x")
        await second.cancel()
        after = await second.push({"event": "reclaim", "droplet_id": OURS}, webhook_id="msg_x")
    assert [again.result, after.result] == ["duplicate", "duplicate"]
    third = shop.open()
    async with third.provider:
        answer = await third.ask()
    assert answer.notices == ()
    assert answer.cancelled == {notice.id}


async def test_a_notice_ends_an_hour_after_its_deadline(desk: Desk) -> None:
    """Without a cancel it stays in force until then; a late one is in force for an hour."""
    await desk.reclaim(30)
    notice = await desk.only()
    desk.skip(minutes=89)
    assert (await desk.only()) == notice
    desk.skip(minutes=2)
    answer = await desk.ask()
    assert answer.notices == ()
    assert answer.cancelled == {notice.id}


@pytest.mark.hostile(70)
async def test_the_state_of_another_droplet_is_thrown_away(shop: Shop) -> None:
    """A disk copied to a new Droplet brings no notice of the old one."""
    first = shop.open()
    async with first.provider:
        await first.ask()
        await first.reclaim()
        await first.only()
    shop.metadata.keys["id"] = str(OURS + 1)
    second = shop.open()
    async with second.provider:
        answer = await second.ask()
        assert answer.notices == ()
        assert answer.cancelled == frozenset()
        assert await second.provider.identity() == str(OURS + 1)


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"null", b"[" * 50_000, b'{"version": 9}', b"\xff"])
async def test_an_unreadable_inbox_is_told_and_begun_anew(shop: Shop, content: bytes) -> None:
    """The next notice is kept as if nothing had been."""
    (shop.tmp_path / "digitalocean-inbox.json").write_bytes(content)
    desk = shop.open(droplet_id=OURS)
    async with desk.provider:
        await desk.reclaim()
        assert (await desk.ask()).failed == {}
        await desk.only()
    again = shop.open()
    async with again.provider:
        await again.only()


async def test_a_full_disk_is_503_and_acted_on_all_the_same(shop: Shop) -> None:
    """The notice is in force at once; only the sender is asked to come again."""
    state_dir = shop.tmp_path / "state"
    shop.tmp_path = state_dir
    desk = shop.open()
    row = {"event": "reclaim", "droplet_id": OURS}
    async with desk.provider:
        verdict = await desk.push(row, webhook_id="msg_x")
        while verdict.result == "pending":
            await desk.ask()
            verdict = await desk.push(row, webhook_id="msg_x")
        assert (verdict.status, verdict.result) in {(503, "accepted"), (503, "duplicate")}
        answer = await desk.ask()
        assert len(answer.notices) == 1
        assert "cannot write" in str(answer.failed["inbox"])
        state_dir.mkdir()
        assert (await desk.push(row, webhook_id="msg_x")) == Verdict(status=200, result="duplicate")
        assert (await desk.ask()).failed == {}


async def test_a_push_before_the_identity_is_known_is_kept(shop: Shop) -> None:
    """It is answered 503, and counts as soon as it is clear whose it is."""
    shop.metadata.open.clear()
    desk = shop.open()
    row = {"event": "reclaim", "droplet_id": OURS}
    async with desk.provider:
        assert (await desk.push(row, webhook_id="a")) == Verdict(status=503, result="pending")
        other = {"event": "reclaim", "droplet_id": OURS + 1}
        assert (await desk.push(other, webhook_id="b")) == Verdict(status=503, result="pending")
        shop.metadata.open.set()
        await desk.provider._whoami.has_asked.wait()
        await until(lambda: desk.provider._droplet_id is not None)
        assert (await desk.only()).evidence is Evidence.STRONG
        assert (await desk.push(row, webhook_id="a")).result == "duplicate"
        assert (await desk.push(other, webhook_id="b")).result == "not_mine"


async def test_messages_that_wait_for_an_identity_are_bounded(shop: Shop) -> None:
    """A talkative sender does not fill the memory."""
    shop.metadata.status = 500
    desk = shop.open()
    async with desk.provider:
        results = [(await desk.reclaim()).result for _ in range(65)]
    assert results == ["pending"] * 64 + ["full"]


async def test_an_unknown_identity_is_not_ready_and_mended_by_itself(shop: Shop) -> None:
    """The signal fails with a mend until the metadata service answers."""
    shop.metadata.status = 500
    desk = shop.open()
    async with desk.provider:
        answer = await desk.ask()
        error = answer.failed["webhook"]
        assert isinstance(error, Unavailable)
        assert "/metadata/v1/id" in error.mend
        with pytest.raises(Unavailable):
            await desk.provider.identity()
        shop.metadata.status = 200
        await until(lambda: desk.provider._droplet_id is not None)
        assert (await desk.ask()).answered == {"webhook", "inbox"}


@pytest.mark.hostile(16)
async def test_no_secret_is_not_ready(shop: Shop) -> None:
    """Nothing can arrive, and whatever does is refused."""
    desk = shop.open(secrets=())
    async with desk.provider:
        error = (await desk.ask()).failed["webhook"]
        assert "openssl rand" in error.mend
        assert (await desk.reclaim()).status == 401


@pytest.mark.hostile(63)
@pytest.mark.parametrize(
    "text",
    ["abc", "-1", "0", "1" * 40, str(2**53 + 1), "<html>512345678</html>", "", "\ufeff512345678", "5 6",
     "\u0665\u0661", "1.0", "0x10"],
)  # fmt: skip
async def test_a_strange_id_is_no_identity(shop: Shop, text: str) -> None:
    """A captive page or a number out of bounds makes us nobody, not somebody else."""
    shop.metadata.keys["id"] = text
    desk = shop.open()
    async with desk.provider:
        assert "webhook" in (await desk.ask()).failed
        with pytest.raises(Malformed):
            await desk.provider.identity()


async def test_bytes_that_are_no_text_are_no_identity(shop: Shop) -> None:
    """Nothing but UTF-8 is believed."""
    shop.metadata.keys["id"] = b"\xff\xfe"
    desk = shop.open()
    async with desk.provider:
        assert "webhook" in (await desk.ask()).failed


@pytest.mark.parametrize("text", ["512345678", "512345678\n".strip(), "1", str(2**53)])
def test_plain_ids_are_read(text: str) -> None:
    """The number as it is."""
    assert parse_id(text) == int(text)


@pytest.mark.hostile(64)
async def test_a_redirect_is_not_followed(shop: Shop) -> None:
    """Another server does not tell us who we are."""
    shop.metadata.location = f"{shop.metadata.endpoint}/elsewhere"
    desk = shop.open()
    async with desk.provider:
        assert "webhook" in (await desk.ask()).failed
    assert "/elsewhere" not in shop.metadata.asked


@pytest.mark.hostile(66)
async def test_a_proxy_in_the_environment_is_not_used(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    """The metadata service is asked directly."""
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")
    desk = shop.open()
    async with desk.provider:
        assert await desk.provider.identity() == str(OURS)


async def test_an_outage_does_not_make_us_anybody_else(shop: Shop) -> None:
    """The identity once known stays while the service is silent."""
    desk = shop.open(identity_refresh_seconds=0.02)
    async with desk.provider:
        await desk.ask()
        shop.metadata.status = 500
        asked = len(shop.metadata.asked)
        await until(lambda: len(shop.metadata.asked) > asked + 1)
        assert (await desk.ask()).failed == {}
        assert (await desk.reclaim()).status == 202


@pytest.mark.hostile(65)
async def test_identity_is_asked_key_by_key_and_never_for_secrets(shop: Shop) -> None:
    """User-data, where people keep their keys, stays unread."""
    desk = shop.open()
    async with desk.provider:
        await desk.ask()
        known = desk.provider._whoami.identity
    assert set(shop.metadata.asked) == {f"/metadata/v1/{key}" for key in KEYS}
    assert known is not None
    assert (known.hostname, known.region, known.tags) == ("spot-trainer-01", "atl1", ("spot", "training"))
    assert (known.public_ip, known.private_ip) == ("203.0.113.7", "10.132.0.7")
    assert known.addresses == {"203.0.113.7", "10.132.0.7", "2001:db8::7"}


@pytest.mark.hostile(65)
async def test_a_private_droplet_without_hostname_knows_its_number(shop: Shop) -> None:
    """Missing and strange keys are empty; names wait until there is a hostname to compare with."""
    for key in ("interfaces/public/0/ipv4/address", "hostname"):
        del shop.metadata.keys[key]
    shop.metadata.keys["region"] = "<html>"
    desk = shop.open()
    async with desk.provider:
        assert (await desk.ask()).failed == {}
        known = desk.provider._whoami.identity
        assert known is not None
        assert (known.public_ip, known.region, known.hostname) == ("", "", "")
        assert (await desk.reclaim(name="spot-trainer-01")).result == "pending"
        assert (await desk.reclaim()).result == "accepted"


async def test_a_configured_id_needs_no_metadata(shop: Shop) -> None:
    """The number of the configuration is enough for messages that carry it."""
    shop.metadata.status = 500
    desk = shop.open(droplet_id=OURS)
    async with desk.provider:
        assert (await desk.ask()).failed == {}
        assert await desk.provider.identity() == str(OURS)
        assert (await desk.reclaim()).result == "accepted"


@pytest.mark.hostile(70)
async def test_a_configured_id_of_another_droplet_is_told(shop: Shop) -> None:
    """A setting that came with a copied image is not silent."""
    desk = shop.open(droplet_id=OURS + 1)
    async with desk.provider:
        await desk.provider._whoami.has_asked.wait()
        error = (await desk.ask()).failed["webhook"]
    assert isinstance(error, Malformed)
    assert str(OURS) in str(error)


async def test_without_a_state_directory_all_is_in_memory(shop: Shop) -> None:
    """Nothing is written, and pushes count all the same."""
    desk = shop.open(kept=False)
    async with desk.provider:
        await desk.ask()
        assert (await desk.reclaim()).status == 202
        await desk.only()
    assert list(shop.tmp_path.iterdir()) == []


@pytest.mark.parametrize(("text", "wanted"), [(str(OURS), True), ("<html>", False)])
async def test_detection_by_one_answer(shop: Shop, text: str, wanted: bool) -> None:
    """A number at the Droplet's path is a Droplet; a page is not."""
    shop.metadata.keys["id"] = text
    assert await shop.open().provider.detect() is wanted
    assert shop.metadata.asked == ["/metadata/v1/id"]


async def test_detection_says_no_when_nobody_answers(shop: Shop) -> None:
    """A refused connection is no Droplet, and no exception."""
    shop.metadata.endpoint = "http://127.0.0.1:1"
    assert await shop.open().provider.detect() is False


@pytest.mark.parametrize(
    "wrong",
    [{"endpoint": "169.254.169.254"}, {"interval_seconds": 0}, {"timeout_seconds": -1}, {"names": ("",)},
     {"identity_refresh_seconds": 0}, {"droplet_id": -1}, {"droplet_id": 2**53 + 1}],
)  # fmt: skip
def test_settings_that_cannot_work_are_refused(wrong: dict[str, Any]) -> None:
    """The message names the key."""
    with pytest.raises(ValueError, match=next(iter(wrong))):
        Config(**wrong)


async def test_it_is_a_receiver_with_an_identity_and_leaves_no_task(shop: Shop) -> None:
    """What the frame looks for is there, and closing closes everything."""
    desk = shop.open()
    assert isinstance(desk.provider, Receiver)
    assert isinstance(desk.provider, Identified)
    async with desk.provider:
        await desk.ask()
    names = [task.get_name() for task in asyncio.all_tasks()]
    assert not [name for name in names if name.startswith("digitalocean")]
    with pytest.raises((ProviderError, RuntimeError)):
        await desk.provider._client.get("/metadata/v1/id")
