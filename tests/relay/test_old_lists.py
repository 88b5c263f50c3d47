# SPDX-License-Identifier: Apache-2.0
"""A relay whose list of Droplets is old: who is told of a mail then, and what is said of the list."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from spotwatch.errors import Denied
from spotwatch.mail.mailbox import BROADCAST, Address, address_of_name
from spotwatch.mail.model import Droplet
from spotwatch.received import Verdict
from spotwatch.relay.fleet import FILE, FRESH_SECONDS, Fleet
from spotwatch.testing import FakeClock
from tests.mail import name_server
from tests.mail.making import OURS, SIGNER, forged, genuine, zone
from tests.relay.account import PlayedApi
from tests.relay.post import OTHER, Post

PENDING = Verdict(status=503, result="pending")
_EXPIRED = Denied("GET /v2/droplets: HTTP 401")
_STRONG, _WEAK = ["reclaim strong"], ["reclaim weak"]
_OURS, _OTHERS, _EVERYBODY = Address(OURS).key, Address(OTHER).key, BROADCAST.key
_NEW = address_of_name("spot-trainer-03").key
_ONE = Droplet(droplet_id=OURS, names=frozenset({"spot-trainer-01"}), hostname="spot-trainer-01")


@pytest.fixture
def api() -> PlayedApi:
    """Give an account with one Droplet."""
    return PlayedApi(_ONE)


@pytest.fixture
async def post(tmp_path: Path, api: PlayedApi) -> AsyncIterator[Post]:
    """Give a relay that has read the list, and lost the API since for longer than a list is new."""
    async with name_server.serving(zone(SIGNER.records)) as server:
        made = Post(tmp_path, server, ask=api, configured=())
        made.start()
        await made.fleet.refresh()
        api.error = _EXPIRED
        made.clock.wall_offset_seconds += FRESH_SECONDS + 1
        made.clock.boot_offset_seconds += FRESH_SECONDS + 1
        await made.fleet.refresh()
        yield made


def _mail(post: Post, name: str) -> bytes:
    text = f"Your Spot Droplet will be reclaimed.\r\n\r\nAffected Droplets:\r\n\r\n{name}\r\n"
    return genuine(sent_at=post.ago(minutes=5), text=text)


@pytest.mark.parametrize("restarts", [False, True])
async def test_a_droplet_that_is_not_in_an_old_list_is_not_unheard(
    post: Post, api: PlayedApi, restarts: bool
) -> None:
    """Everybody saves, the mail is asked for again, and counts once the list is new; also after a restart."""
    if restarts:
        post.start()
        await post.fleet.refresh()
    raw = _mail(post, "spot-trainer-02")
    assert await post.mail(raw, token="t" * 50) == PENDING
    assert await post.letters() == {_EVERYBODY: _WEAK}
    api.error = None
    api.droplets = (_ONE, Droplet(droplet_id=OTHER, names=frozenset({"spot-trainer-02"})))
    await post.fleet.refresh()
    assert await post.mail(raw, token="t" * 50) == Verdict(status=202, result="accepted")
    assert await post.letters() == {_EVERYBODY: _WEAK, _OTHERS: _STRONG}


async def test_one_in_place_of_another_hears_by_its_name(post: Post) -> None:
    """The list gives the name to a Droplet that is gone: whoever has it now is told too, and saves."""
    assert await post.mail(_mail(post, "spot-trainer-01")) == PENDING
    held = await post.letters()
    assert (held[_OURS], held[_EVERYBODY]) == (_STRONG, _WEAK)
    assert address_of_name("spot-trainer-01").key in post.objects.objects


async def test_the_same_mail_again_writes_nothing_new(post: Post) -> None:
    """A service that tries for hours makes no work for the bucket."""
    raw = _mail(post, "spot-trainer-01")
    await post.mail(raw)
    await post.letters()
    written = len(post.objects.written)
    assert await post.mail(raw) == PENDING
    await post.letters()
    assert len(post.objects.written) == written


async def test_an_old_list_gives_nobodys_word_more_weight(post: Post) -> None:
    """A forged mail flushes, a forged cancel does nothing, as with a new list."""
    assert (await post.mail(forged(sent_at=post.ago(minutes=5), event="cancel"))).status == 200
    assert await post.letters() == {}
    assert await post.mail(forged(sent_at=post.ago(minutes=5))) == PENDING
    assert set(map(tuple, (await post.letters()).values())) == {tuple(_WEAK)}


async def test_a_proven_cancel_is_told_and_comes_again(post: Post) -> None:
    """It goes to whom the list names, and makes nobody save."""
    raw = genuine(sent_at=post.ago(minutes=5), event="cancel", message_id="<two@digitalocean.com>")
    assert await post.mail(raw) == PENDING
    assert await post.letters() == {_OURS: ["cancel strong"]}


@pytest.mark.parametrize("restarts", [False, True])
async def test_whoever_is_not_in_a_list_of_a_minute_ago_is_not_unheard(
    post: Post, api: PlayedApi, restarts: bool
) -> None:
    """As soon as the API does not answer, a name that is new to us may be ours; one in the list stays."""
    api.error = None
    await post.fleet.refresh()
    if restarts:
        post.start()
    api.error = _EXPIRED
    await post.fleet.refresh()
    assert post.fleet.is_known
    assert await post.mail(_mail(post, "spot-trainer-02")) == PENDING
    assert (await post.notice({"event": "reclaim", "name": "spot-trainer-03"})).status == 503
    assert await post.letters() == {_EVERYBODY: _WEAK, _NEW: _WEAK}
    assert await post.mail(_mail(post, "spot-trainer-01")) == Verdict(status=202, result="accepted")
    assert (await post.letters())[_OURS] == _STRONG


@pytest.mark.parametrize(
    ("row", "status", "held"),
    [
        ({"name": "spot-trainer-03"}, 503, {_NEW: _WEAK, _EVERYBODY: _WEAK}),
        ({"name": "spot-trainer-01"}, 503, {_OURS: _STRONG, _EVERYBODY: _WEAK}),
        ({"droplet_id": OTHER, "name": "spot-trainer-01"}, 503, {_OTHERS: _WEAK, _EVERYBODY: _WEAK}),
        ({"droplet_id": OURS, "name": "spot-trainer-01"}, 202, {_OURS: _STRONG}),
        ({"droplet_id": OTHER}, 202, {_OTHERS: _STRONG}),
        ({"event": "cancel", "name": "spot-trainer-01"}, 503, {_OURS: ["cancel strong"]}),
    ],
)
async def test_a_notice_by_a_name_waits_for_a_new_list(
    post: Post, row: dict[str, object], status: int, held: dict[str, list[str]]
) -> None:
    """A number needs no list; a name is told to whom the list says and to everybody, and asked for again."""
    assert (await post.notice({"event": "reclaim"} | row)).status == status
    assert await post.letters() == held


_MINUTE = 60.0


@pytest.mark.parametrize(
    ("push", "is_known"),
    [
        (lambda clock: None, True),
        (lambda clock: setattr(clock, "wall_offset_seconds", FRESH_SECONDS - _MINUTE), True),
        (lambda clock: setattr(clock, "wall_offset_seconds", FRESH_SECONDS + 1), False),
        (lambda clock: setattr(clock, "wall_offset_seconds", -_MINUTE), False),
    ],
)
async def test_a_kept_list_counts_for_minutes(
    tmp_path: Path, api: PlayedApi, push: Callable[[FakeClock], None], is_known: bool
) -> None:
    """After a restart its own time says how old it is; a time in the future says nothing."""
    await Fleet([], api, FakeClock(), state_dir=tmp_path).refresh()
    clock = FakeClock()
    push(clock)
    after = Fleet([], api, clock, state_dir=tmp_path)
    assert (after.is_known, after.droplets) == (is_known, (_ONE,))
    assert after.listed_at is not None
    assert (after.sole is None) is not is_known


async def test_a_list_is_as_old_as_it_is_whatever_the_wall_clock_says(api: PlayedApi) -> None:
    """A clock that is set while the relay runs makes no list old or new."""
    clock = FakeClock()
    fleet = Fleet([], api, clock, state_dir=None)
    await fleet.refresh()
    clock.wall_offset_seconds = 86400.0
    assert fleet.is_known
    clock.wall_offset_seconds = 0.0
    clock.boot_offset_seconds += FRESH_SECONDS + 1
    assert not fleet.is_known


async def test_each_good_list_is_kept_with_its_time(tmp_path: Path, api: PlayedApi) -> None:
    """Also when nothing in it has changed: its age counts after a restart."""
    clock = FakeClock()
    fleet = Fleet([], api, clock, state_dir=tmp_path)
    await fleet.refresh()
    first = json.loads((tmp_path / FILE).read_bytes())
    clock.wall_offset_seconds += _MINUTE
    await fleet.refresh()
    second = json.loads((tmp_path / FILE).read_bytes())
    assert (first["droplets"], first["listed_at"] < second["listed_at"]) == (second["droplets"], True)


async def test_a_list_of_an_earlier_version_is_kept_and_old(tmp_path: Path, api: PlayedApi) -> None:
    """It has no time: nobody is forgotten, and nobody is missing for it."""
    await Fleet([], api, FakeClock(), state_dir=tmp_path).refresh()
    row = json.loads((tmp_path / FILE).read_bytes())
    del row["listed_at"]
    (tmp_path / FILE).write_text(json.dumps(row))
    after = Fleet([], api, FakeClock(), state_dir=tmp_path)
    assert (after.is_known, after.droplets, after.listed_at, after.problem) == (False, (_ONE,), None, None)
