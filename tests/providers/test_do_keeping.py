# SPDX-License-Identifier: Apache-2.0
"""Pushed notices over time: restarts, the end, another Droplet's state, a disk that is full."""

from __future__ import annotations

import pytest

from spotwatch.providers import Verdict
from tests.providers.do_shop import OURS, Desk, Shop


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


async def test_without_a_state_directory_all_is_in_memory(shop: Shop) -> None:
    """Nothing is written, and pushes count all the same."""
    desk = shop.open(kept=False)
    async with desk.provider:
        await desk.ask()
        assert (await desk.reclaim()).status == 202
        await desk.only()
    assert list(shop.tmp_path.iterdir()) == []
