# SPDX-License-Identifier: Apache-2.0
"""What holds for every inbound mail service, tested over all of them by name.

It does not test what only one service does.
"""

from __future__ import annotations

import contextlib
import importlib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from spotwatch.errors import ConfigError
from spotwatch.mail import inbound
from spotwatch.mail.inbound import Refused
from spotwatch.received import Received
from tests.mail.inbound.services import MAIL, NOW, bench, deliver, refusal

NAMES = inbound.names()
TAMPERED = [
    pytest.param(name, why, request, id=f"{name}: {why}")
    for name in NAMES
    for why, request in importlib.import_module(f"tests.mail.inbound.requests_{name}").tampered()
]


def test_each_service_has_requests() -> None:
    """Nobody can add a service without requests to test it by."""
    folder = Path(__file__).parent
    assert {path.stem.removeprefix("requests_") for path in folder.glob("requests_*.py")} == set(NAMES)


def test_an_unknown_service_lists_those_there_are() -> None:
    """A misspelt section is told what it could be."""
    with pytest.raises(ConfigError, match=r"unknown inbound mail service 'mailgum'; have .*mailgun"):
        inbound.load("mailgum")


@pytest.mark.parametrize("name", NAMES)
async def test_a_good_request_hands_over_the_mail(name: str) -> None:
    """The raw mail comes out byte for byte, with what it takes to count it once."""
    made = bench(name)
    delivery = await deliver(made.service, made.requests.good())
    assert delivery.raw == MAIL
    assert delivery.is_original
    assert delivery.service == name == made.service.name
    assert delivery.replay_id
    assert abs((delivery.received_at - NOW).total_seconds()) < 60
    assert delivery.doubts == ()


@pytest.mark.parametrize("name", NAMES)
async def test_the_same_request_has_the_same_replay_id(name: str) -> None:
    """What is sent twice can be known by it."""
    made = bench(name)
    request = made.requests.good()
    first, second = await deliver(made.service, request), await deliver(made.service, request)
    assert first.replay_id == second.replay_id


@pytest.mark.hostile(7, 8)
@pytest.mark.parametrize(("name", "why", "request_"), TAMPERED)
async def test_what_is_tampered_with_is_unsigned(name: str, why: str, request_: Received) -> None:
    """No tampering is heard, and none is told what was wrong."""
    verdict = await refusal(bench(name).service, request_)
    assert verdict.status == 401
    assert verdict.result in {"unsigned", "replayed"}


@pytest.mark.hostile(7)
@pytest.mark.parametrize("name", NAMES)
async def test_nothing_at_all_is_unsigned(name: str) -> None:
    """A request without headers and body ends in 401 or 400, never in an exception."""
    verdict = await refusal(bench(name).service, Received(headers={}, body=b""))
    assert verdict.status in {400, 401, 403}


@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
async def test_whatever_comes_is_refused_properly(name: str, data: Any) -> None:
    """Neither a changed header nor a changed body makes a service raise anything but Refused."""
    made = bench(name)
    good = made.requests.good()
    changed = dict(good.headers)
    for key in data.draw(st.lists(st.sampled_from(sorted(changed)), max_size=3)) if changed else ():
        changed[key] = data.draw(st.text(max_size=60))
    cut = data.draw(st.integers(0, len(good.body)))
    body = good.body[:cut] + data.draw(st.binary(max_size=60)) + good.body[cut:]
    with contextlib.suppress(Refused):
        await made.service.open(Received(headers=changed, body=body, path=good.path))
