# SPDX-License-Identifier: Apache-2.0
"""How often the AWS provider asks: the interval, what slows it, and that an outage costs no poll.

Which signal is asked when is tested in `test_aws`.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from spotwatch.providers import Context
from spotwatch.providers.aws import Aws, Config
from spotwatch.testing import FakeClock, run_virtual
from tests.providers.imds import PATHS, TERMINATE, TOKEN_PATH, Hand, Imds, make, polled
from tests.providers.raw_server import reset, status
from tests.quiet import in_quiet_time


def test_waiting_keeps_the_interval_and_jitter_only_shortens() -> None:
    """From the start of one poll to the next: an interval, at most a tenth less, whatever the poll took."""

    async def main() -> list[float]:
        clock, rng = FakeClock(), Hand()
        context = Context(clock=clock, runtime_dir=Path("/nonexistent"))
        provider = Aws(Config(endpoint="http://127.0.0.1:1"), context, dmi=lambda _name: "", rng=rng)
        pauses = []
        for rng.value, took in ((0.0, 0.0), (0.5, 0.4), (0.999, 0.0), (0.0, 3.0)):
            provider._polled_at = began = clock.boot()
            await clock.sleep(took)
            await provider.wait()
            pauses.append(round(clock.boot() - began, 3))
        return pauses

    assert run_virtual(main()) == [1.0, 0.95, 0.9, 3.0]


def test_waiting_before_the_first_poll_is_an_interval() -> None:
    """Nothing was asked yet, and still the wait ends."""

    async def main() -> float:
        clock = FakeClock()
        await make("http://127.0.0.1:1", clock, interval_seconds=2).wait()
        return clock.monotonic()

    assert run_virtual(main()) == 2.0


async def _pause(provider: Aws) -> float:
    """Return how long the provider would wait now, had its last poll taken no time."""
    await provider.notices()
    return provider._pause_seconds


@in_quiet_time
async def test_silence_slows_to_two_intervals_at_most() -> None:
    """Three polls without any answer double the pause, no more is added, one answer ends it."""
    imds = Imds()
    async with polled(imds) as provider:
        imds.routes[f"PUT {TOKEN_PATH}"], give = reset, imds.routes[f"PUT {TOKEN_PATH}"]
        assert [await _pause(provider) for _ in range(6)] == [1, 1, 2, 2, 2, 2]
        imds.routes[f"PUT {TOKEN_PATH}"] = give
        assert await _pause(provider) == 1


@in_quiet_time
async def test_a_signal_that_answers_keeps_the_interval() -> None:
    """One broken path does not slow the others."""
    imds, clock = Imds(), FakeClock()
    imds.shows["rebalance"] = status(500)
    async with polled(imds, clock) as provider:
        for _ in range(5):
            assert await _pause(provider) == 1
            clock.boot_offset_seconds += 5


@pytest.mark.parametrize(
    ("code", "wish", "pause"),
    [(429, "3", 3), (503, "2", 2), (503, "600", 5), (429, "0", 1), (500, "3", 1), (429, "later", 1)],
)
@in_quiet_time
async def test_only_retry_after_slows_and_never_beyond_5_s(code: int, wish: str, pause: float) -> None:
    """The server's wish counts for 429 and 503, up to 5 s."""
    imds = Imds()
    imds.shows["instance-action"] = status(code, {"Retry-After": wish})
    async with polled(imds) as provider:
        assert await _pause(provider) == pause


@in_quiet_time
async def test_retry_after_of_one_signal_slows_that_one() -> None:
    """One throttled signal does not slow instance-action, and is itself asked no sooner than in 5 s."""
    imds, clock = Imds(), FakeClock()
    imds.shows["rebalance"] = status(429, {"Retry-After": "600"})
    async with polled(imds, clock) as provider:
        assert await _pause(provider) == 1
        clock.boot_offset_seconds += 4
        await provider.notices()
        assert imds.asked(PATHS["rebalance"]) == 1
        clock.boot_offset_seconds += 1
        await provider.notices()
        assert imds.asked(PATHS["rebalance"]) == 2


@in_quiet_time
async def test_the_first_poll_after_an_outage_sees_the_notice() -> None:
    """Sixty polls of silence, then a notice: the next poll has it."""
    imds, clock = Imds(), FakeClock()
    async with polled(imds, clock) as provider:
        await provider.notices()
        imds.shows["instance-action"] = reset
        for _ in range(60):
            clock.boot_offset_seconds += 1
            assert "instance-action" in (await provider.notices()).failed
        imds.shows["instance-action"] = TERMINATE
        assert len((await provider.notices()).notices) == 1
