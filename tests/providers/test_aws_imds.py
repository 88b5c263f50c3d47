# SPDX-License-Identifier: Apache-2.0
"""How the metadata service is spoken to: tokens, their renewal, one clean retry, and the old way without."""

from __future__ import annotations

import pytest

from spotwatch.errors import Denied, Malformed, NotHere, Unavailable
from spotwatch.providers._aws_machine import (
    Environment,
)
from spotwatch.testing import FakeClock
from tests.providers.imds import PATHS, TERMINATE, TOKEN_PATH, Imds, failed_types, make, polled
from tests.providers.raw_server import RawServer, after, body, drip, hang, in_turn, raw, reset, status
from tests.quiet import in_quiet_time, since, virtual_now


@pytest.mark.parametrize(
    ("asked", "header", "renewed_after"),
    [
        (21600, None, 21540),
        (21600, "300", 240),
        (240, None, 180),
        (4, None, 3),
        (21600, "99999", 21540),
        (21600, "soon", 21540),
        (21600, "0", 0.75),
    ],
)
@in_quiet_time
async def test_a_token_is_kept_and_renewed_early(
    asked: int, header: str | None, renewed_after: float
) -> None:
    """One token serves until a minute before its end, short ones three quarters of their life."""
    imds, clock = Imds(ttl_header=header), FakeClock()
    async with polled(imds, clock, token_ttl_seconds=asked) as provider:
        await provider.notices()
        clock.boot_offset_seconds += renewed_after - 0.2
        await provider.notices()
        assert imds.puts == 1
        clock.boot_offset_seconds += 0.4
        assert (await provider.notices()).failed == {}
        assert imds.puts == 2
    ttls = {value for r in imds.requests for value in r.values("X-aws-ec2-metadata-token-ttl-seconds")}
    assert ttls == {str(asked)}


@in_quiet_time
async def test_a_failing_renewal_costs_nothing_while_the_old_token_is_good() -> None:
    """In the last minute the old token is used on, even when the service hangs on new ones."""
    imds, clock = Imds(), FakeClock()
    imds.shows["instance-action"] = TERMINATE
    async with polled(imds, clock, timeout_seconds=1.5) as provider:
        await provider.notices()
        imds.routes[f"PUT {TOKEN_PATH}"] = hang
        clock.boot_offset_seconds += 21550
        answer = await provider.notices()
        assert len(answer.notices) == 1
        assert answer.failed == {}
        clock.boot_offset_seconds += 60
        assert set(failed_types(await provider.notices()).values()) == {Unavailable}


@pytest.mark.hostile(67)
@in_quiet_time
async def test_401_is_retried_once_in_the_same_poll_with_one_clean_header() -> None:
    """When all tokens expire at once, no poll is lost, one new token serves all, each header comes once."""
    imds, clock = Imds(), FakeClock()
    imds.shows["instance-action"] = TERMINATE
    async with polled(imds, clock) as provider:
        await provider.notices()
        imds.expire()
        imds.requests.clear()
        clock.boot_offset_seconds += 30
        answer = await provider.notices()
    assert answer.failed == {}
    assert len(answer.notices) == 1
    assert answer.answered == set(PATHS)
    assert imds.puts == 1
    gets = [r for r in imds.requests if r.method == "GET"]
    assert len(gets) == 10
    assert all(len(r.values("X-aws-ec2-metadata-token")) == 1 for r in gets)


@in_quiet_time
async def test_a_late_401_does_not_cost_the_new_token() -> None:
    """A refusal of the old token that comes after the new one was fetched asks for no third."""
    imds = Imds()
    async with polled(imds, timeout_seconds=5) as provider:
        await provider.identity()
        imds.expire()
        imds.routes[PATHS["rebalance"]] = after(0.2, imds.routes[PATHS["rebalance"]])
        assert (await provider.notices()).failed == {}
    assert imds.puts == 2


@pytest.mark.hostile(67)
@in_quiet_time
async def test_401_twice_is_denied() -> None:
    """A service that refuses fresh tokens is told as that, after two requests for the signal."""
    imds = Imds()
    async with polled(imds) as provider:
        imds.routes[PATHS["instance-action"]] = status(401)
        answer = await provider.notices()
    assert failed_types(answer) == {"instance-action": Denied}
    assert imds.asked(PATHS["instance-action"]) == 2
    assert imds.puts == 2


@in_quiet_time
async def test_the_token_request_counts_against_the_time_limit() -> None:
    """Token, answers and retry together stay within the limit of one poll."""
    imds = Imds()
    async with polled(imds, timeout_seconds=1) as provider:
        imds.routes[f"PUT {TOKEN_PATH}"] = after(0.6, imds.routes[f"PUT {TOKEN_PATH}"])
        imds.shows["instance-action"] = after(0.6, TERMINATE)
        began = virtual_now()
        answer = await provider.notices()
        assert since(began) == 1
    assert failed_types(answer) == {"instance-action": Unavailable}


@pytest.mark.parametrize("is_container", [False, True])
@in_quiet_time
async def test_silence_in_a_container_hints_at_the_hop_limit(
    is_container: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every due signal fails, and says how to mend it where a container is the likely reason."""
    monkeypatch.setattr(
        "spotwatch.providers.aws.read_environment", lambda _variables: Environment(is_container=is_container)
    )
    imds = Imds()
    async with polled(imds, timeout_seconds=0.2) as provider:
        imds.routes[f"PUT {TOKEN_PATH}"] = hang
        answer = await provider.notices()
        imds.routes[f"PUT {TOKEN_PATH}"] = reset
        other = await provider.notices()
    assert failed_types(answer) == dict.fromkeys(PATHS, Unavailable)
    for error in answer.failed.values():
        assert ("--http-put-response-hop-limit 2" in error.mend) is is_container
    assert all(error.mend == "" for error in other.failed.values())


@pytest.mark.parametrize(
    ("behaviour", "error", "mend"),
    [
        (status(403), Denied, "--http-endpoint enabled"),
        (status(401), Denied, ""),
        (status(400), Malformed, ""),
        (status(404), NotHere, "allow_imdsv1"),
        (status(405), NotHere, "allow_imdsv1"),
        (status(503, {"Retry-After": "3"}), Unavailable, ""),
        (reset, Unavailable, ""),
        (drip, Unavailable, ""),
        (body(""), Malformed, ""),
        (body("<html>"), Malformed, ""),
        (body("a b"), Malformed, ""),
        (body("a\r\nX-Evil: 1"), Malformed, ""),
        (body("x" * 5000), Malformed, ""),
        (body(b"\xff"), Malformed, ""),
        (raw(b"SSH-2.0\r\n"), Malformed, ""),
    ],
)
@in_quiet_time
async def test_no_token_fails_all_signals_alike(behaviour: object, error: type, mend: str) -> None:
    """Each way of getting no token is the right error for every due signal, and nothing is asked without."""
    imds = Imds()
    async with polled(imds, timeout_seconds=0.3) as provider:
        imds.routes[f"PUT {TOKEN_PATH}"] = behaviour  # type: ignore[assignment] # parametrised
        answer = await provider.notices()
    assert failed_types(answer) == dict.fromkeys(PATHS, error)
    assert all(mend in failure.mend for failure in answer.failed.values())
    assert [r for r in imds.requests if r.method == "GET"] == []


@in_quiet_time
async def test_the_old_way_without_tokens_is_never_taken_unasked() -> None:
    """A service that answers without a token is not asked without one by default."""
    async with (
        RawServer(dict.fromkeys(PATHS.values(), TERMINATE)) as server,
        make(server.url) as provider,
    ):
        answer = await provider.notices()
    assert answer.notices == ()
    assert failed_types(answer) == dict.fromkeys(PATHS, NotHere)


@pytest.mark.parametrize("behaviour", [status(404), status(403), hang])
@in_quiet_time
async def test_the_old_way_when_it_is_allowed(behaviour: object) -> None:
    """Without a token the signals are asked without one, in the same poll, and the token not for a while."""
    routes = {PATHS["instance-action"]: TERMINATE, f"PUT {TOKEN_PATH}": behaviour}
    clock = FakeClock()
    async with (
        RawServer(routes) as server,  # type: ignore[arg-type] # parametrised
        make(server.url, clock, allow_imdsv1=True, timeout_seconds=1.5) as provider,
    ):
        answer = await provider.notices()
        await provider.notices()
        assert server.asked(TOKEN_PATH, "PUT") == 1
        clock.boot_offset_seconds += 301
        await provider.notices()
        assert server.asked(TOKEN_PATH, "PUT") == 2
    assert len(answer.notices) == 1
    assert answer.failed == {}
    assert all(r.values("X-aws-ec2-metadata-token") == [] for r in server.requests)


@in_quiet_time
async def test_the_old_way_can_be_forbidden_by_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """The variable that AWS's tools know overrules the setting."""
    monkeypatch.setenv("AWS_EC2_METADATA_V1_DISABLED", "true")
    routes = {PATHS["instance-action"]: TERMINATE}
    async with RawServer(routes) as server, make(server.url, allow_imdsv1=True) as provider:
        assert set(failed_types(await provider.notices()).values()) == {NotHere}


@in_quiet_time
async def test_tokens_win_over_the_old_way() -> None:
    """Where tokens are to be had they are used, allowed or not, also after a time without."""
    imds, clock = Imds(), FakeClock()
    async with polled(imds, clock, allow_imdsv1=True) as provider:
        give = imds.routes[f"PUT {TOKEN_PATH}"]
        imds.routes[f"PUT {TOKEN_PATH}"] = in_turn(status(503), give)
        assert (await provider.notices()).failed == {}
    assert imds.puts == 2
