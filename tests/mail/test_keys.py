# SPDX-License-Identifier: Apache-2.0
"""Keys are remembered as long as they should be, outlive an outage, and cost few questions."""

from __future__ import annotations

import asyncio

import pytest

from spotwatch.errors import ConfigError
from spotwatch.mail import extra, keys
from spotwatch.mail.keys import KeyAnswer, KeyCache, KeyState
from spotwatch.testing import FakeClock, run_virtual
from tests.mail.signing import StubResolver

_NAME = "s1._domainkey.digitalocean.com"
_TEXT = "v=DKIM1; p=abc"
_HOUR = 3600


async def _state(cache: KeyCache, name: str = _NAME) -> KeyState:
    return (await cache.fetch([name]))[name].state


@pytest.mark.parametrize(("ttl", "kept"), [(0, _HOUR), (300, _HOUR), (7200, 7200), (10**9, 24 * _HOUR)])
def test_key_is_remembered_for_an_hour_to_a_day(ttl: float, kept: float) -> None:
    """A short TTL costs no question during the two hours that matter, and a long one no revocation."""

    class Resolver:
        asked = 0

        async def resolve(self, name: str) -> KeyAnswer:
            self.asked += 1
            return KeyAnswer(state=KeyState.FOUND, text=_TEXT, ttl_seconds=ttl)

    async def story() -> None:
        resolver = Resolver()
        cache = KeyCache(resolver, FakeClock())
        await cache.fetch([_NAME])
        await asyncio.sleep(kept - 1)
        assert (await cache.fetch([_NAME]))[_NAME].text == _TEXT
        assert resolver.asked == 1
        await asyncio.sleep(2)
        await cache.fetch([_NAME])
        assert resolver.asked == 2

    run_virtual(story())


def test_missing_key_is_asked_for_again_after_a_minute() -> None:
    """A key published a moment too late must not be missing for long."""

    async def story() -> None:
        resolver = StubResolver()
        cache = KeyCache(resolver, FakeClock())
        assert await _state(cache) is KeyState.MISSING
        resolver.records[_NAME] = _TEXT
        await asyncio.sleep(59)
        assert await _state(cache) is KeyState.MISSING
        await asyncio.sleep(2)
        assert await _state(cache) is KeyState.FOUND

    run_virtual(story())


@pytest.mark.hostile(41)
def test_key_outlives_an_outage_of_dns_by_seven_days() -> None:
    """DNS that is down when the notice comes costs no proof if the key was ever seen this week."""

    async def story() -> None:
        resolver = StubResolver({_NAME: _TEXT})
        cache = KeyCache(resolver, FakeClock())
        await cache.fetch([_NAME])
        resolver.is_down = True
        await asyncio.sleep(7 * 24 * _HOUR - 20)
        for _ in range(100):
            answer = (await cache.fetch([_NAME]))[_NAME]
        assert (answer.state, answer.text) == (KeyState.FOUND, _TEXT)
        assert "remembered" in answer.why
        assert len(resolver.asked) == 2
        await asyncio.sleep(40)
        assert await _state(cache) is KeyState.NO_ANSWER

    run_virtual(story())


def test_key_withdrawn_from_dns_is_forgotten() -> None:
    """An answer that there is no key ends the remembered one: that is how a key is revoked."""

    async def story() -> None:
        resolver = StubResolver({_NAME: _TEXT})
        cache = KeyCache(resolver, FakeClock())
        await cache.fetch([_NAME])
        resolver.records.clear()
        await asyncio.sleep(_HOUR + 1)
        assert await _state(cache) is KeyState.MISSING
        resolver.is_down = True
        await asyncio.sleep(61)
        assert await _state(cache) is KeyState.NO_ANSWER

    run_virtual(story())


def test_flood_waits_for_dead_name_servers_once() -> None:
    """While DNS is down it is asked once in ten seconds, not once a mail, and soon noticed to be back."""

    async def story() -> None:
        resolver = StubResolver({_NAME: _TEXT})
        resolver.is_down = True
        cache = KeyCache(resolver, FakeClock())
        for _ in range(100):
            assert await _state(cache) is KeyState.NO_ANSWER
        assert len(resolver.asked) == 1
        resolver.is_down = False
        await asyncio.sleep(11)
        assert await _state(cache) is KeyState.FOUND

    run_virtual(story())


@pytest.mark.hostile(40)
def test_mail_costs_five_questions_at_most() -> None:
    """Fifty names of one mail are not fifty questions."""

    async def story() -> None:
        resolver = StubResolver()
        names = [f"s{i}._domainkey.digitalocean.com" for i in range(50)]
        assert set(await KeyCache(resolver, FakeClock()).fetch([names[0], *names])) == set(names[:5])
        assert resolver.asked == names[:5]

    run_virtual(story())


def test_names_that_mails_make_up_push_out_no_key() -> None:
    """A thousand selectors that do not exist leave 256 answers remembered, the real key among them."""

    async def story() -> None:
        resolver = StubResolver({_NAME: _TEXT})
        cache = KeyCache(resolver, FakeClock())
        await cache.fetch([_NAME])
        for i in range(1000):
            await cache.fetch([f"s{i}._domainkey.digitalocean.com"])
        assert len(cache._entries) == keys.MAX_REMEMBERED
        resolver.is_down = True
        assert await _state(cache) is KeyState.FOUND

    run_virtual(story())


def test_missing_extra_says_what_to_install() -> None:
    """Whoever has no dnspython learns what to do."""
    with pytest.raises(ConfigError, match=r"pip install 'spotwatch\[mail\]'"):
        extra.require("dns_that_is_not_installed.resolver")
