# SPDX-License-Identifier: Apache-2.0
"""Pushed notices: whose they are, what they are worth, and what is no notice.

The metadata service is a real one on loopback. It does not test signatures' forms or the listener.
"""

from __future__ import annotations

import asyncio
import json
from datetime import timedelta
from typing import Any

import aiohttp
import pytest

from spotwatch.errors import ProviderError
from spotwatch.model import Certainty, Evidence, Kind, to_rfc3339
from spotwatch.providers import Identified, Received, Receiver, Verdict
from spotwatch.providers.digitalocean import Config
from spotwatch.server import WebhookServer
from spotwatch.webhooks import signed_headers
from tests.providers.do_shop import MILLISECOND, OURS, SECRET, Desk, Shop


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
    # It is kept for when the earlier one has been outlived.
    assert (await desk.reclaim(90)).result == "accepted"
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


@pytest.mark.parametrize(
    ("hours", "status"), [(-24 * 365, 400), (-3.1, 400), (-2.9, 202), (1, 202), (24 * 365, 202)]
)
async def test_a_time_long_before_its_signature_is_refused_and_named(
    desk: Desk, hours: float, status: int
) -> None:
    """Of another year, mistyped: it would stop the trainer at once. A time just past still does."""
    at = to_rfc3339(desk.clock.now() + timedelta(hours=hours))
    verdict = await desk.push({"event": "reclaim", "droplet_id": OURS, "at": at})
    assert verdict.status == status
    assert ("'at'" in verdict.why and "mail.max_age_seconds" in verdict.why) == (status == 400)
    assert len((await desk.ask()).notices) == (status == 202)
