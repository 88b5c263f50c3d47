# SPDX-License-Identifier: Apache-2.0
"""Whoever knows a topic's name sends junk that names invented certificates; the genuine message is heard.

What a certificate must be, and how it is fetched, is tested beside this file.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from spotwatch.mail.inbound import Refused
from spotwatch.mail.inbound._sns_asking import MAX_FOR_NETWORK, MAX_FOR_STRANGERS, MISSING_SECONDS
from spotwatch.mail.inbound._sns_certificate import NoSuchFile
from spotwatch.mail.inbound._sns_keys import FILE, Keys
from spotwatch.mail.inbound.ses import Ses
from spotwatch.mail.model import Delivery
from spotwatch.providers import Context
from spotwatch.providers._do_services import make_doors
from spotwatch.received import Received, Verdict
from tests.mail.inbound.requests_ses import (
    CERTIFICATE_URL,
    certificate,
    config,
    confirmation,
    envelope,
    good,
    post,
    sign,
)
from tests.mail.inbound.services import NOW
from tests.mail.inbound.still import Still

AMAZON, NEIGHBOUR = "54.240.1.7", "54.240.1.99"
STRANGER = "203.0.113.5"


@dataclass
class Bench:
    """The service beside a host that has one certificate."""

    folder: Path | None = None
    now: datetime = NOW
    asked: list[str] = field(default_factory=list)
    served: Callable[[], bytes] = certificate

    def __post_init__(self) -> None:
        """Make the service."""
        self.clock = Still(self.now)
        path = None if self.folder is None else self.folder / FILE
        self.keys = Keys(self.clock, self.fetch, path=path)
        self.service = Ses(
            config,
            read_secret=str,
            clock=self.clock,
            tolerance_seconds=300,
            keys=self.keys,
            confirm=lambda arn, token: None,
        )

    async def fetch(self, url: str) -> bytes:
        """Play Amazon's host."""
        self.asked.append(url)
        if url != CERTIFICATE_URL:
            raise NoSuchFile(f"{url} answers 404")
        return self.served()

    async def send(self, request: Received, peer: str) -> Delivery | Verdict:
        """Post a request, and return what it brings or how it is refused."""
        try:
            return await self.service.open(replace(request, peer=peer))
        except Refused as refused:
            return refused.verdict

    async def siege(self, peers: list[str], count: int) -> None:
        """Post unsigned junk, each with a certificate of its own."""
        for number in range(count):
            url = CERTIFICATE_URL.replace("0123456789abcdef" * 2, f"{number:032x}")
            row = envelope(SigningCertURL=url) | {"Signature": "AAAA"}
            verdict = await self.send(post(row), peers[number % len(peers)])
            assert verdict == Verdict(status=503, result="pending")


@pytest.mark.hostile(27)
async def test_one_stranger_does_not_keep_the_first_message_away() -> None:
    """Nothing is known yet, neither certificate nor network."""
    bench = Bench()
    await bench.siege([STRANGER], 100)
    assert len(bench.asked) == MAX_FOR_NETWORK
    assert isinstance(await bench.send(good(), AMAZON), Delivery)


@pytest.mark.parametrize("peer", ["127.0.0.1", "::1", ""])
async def test_behind_a_proxy_that_hides_who_asks_ten_a_minute_do_not_either(peer: str) -> None:
    """All look alike there, so that no share of one network can be kept from the others."""
    bench = Bench()
    await bench.siege([peer], 10)
    assert isinstance(await bench.send(good(), peer), Delivery)
    await bench.siege([peer], 100)
    assert len(bench.asked) <= 2 * MAX_FOR_STRANGERS


@pytest.mark.hostile(27)
async def test_many_strangers_do_not_keep_a_new_certificate_of_a_known_network_away() -> None:
    """They use up their own share only, and Amazon signs with another certificate one day."""
    bench = Bench()
    assert isinstance(await bench.send(good(), AMAZON), Delivery)
    bench.keys._read.clear()
    bench.keys._proven.clear()
    bench.asked.clear()
    await bench.siege([f"203.0.{number}.1" for number in range(100)], 100)
    assert len(bench.asked) == MAX_FOR_STRANGERS
    assert isinstance(await bench.send(good(), NEIGHBOUR), Delivery)


@pytest.mark.parametrize("first", ["a notification", "the confirmation"])
async def test_a_certificate_that_has_proven_a_message_outlives_a_restart(tmp_path: Path, first: str) -> None:
    """It is here before the first message of the next life, however much junk comes."""
    before = Bench(tmp_path)
    request = good() if first == "a notification" else post(sign(confirmation()))
    await before.send(request, AMAZON)
    assert before.keys.problem == ""
    assert (tmp_path / FILE).stat().st_mode & 0o777 == 0o600
    after = Bench(tmp_path)
    await after.siege([f"203.0.{number}.1" for number in range(100)], 100)
    after.asked.clear()
    assert isinstance(await after.send(good(), "198.51.100.1"), Delivery)
    assert after.asked == []


async def test_what_anybody_may_name_is_not_kept(tmp_path: Path) -> None:
    """A message that is not signed proves no certificate, nor the network that it comes from."""
    bench = Bench(tmp_path)
    await bench.send(post(envelope() | {"Signature": "AAAA"}), STRANGER)
    assert bench.asked == [CERTIFICATE_URL]
    assert not (tmp_path / FILE).exists()
    assert bench.keys._asking.known == ()


async def test_other_genuine_certificates_do_not_displace_the_one_that_counts() -> None:
    """Amazon has signed with many; who names them all in turn keeps ours in memory."""
    bench = Bench()
    await bench.send(good(), AMAZON)
    bench.keys._fetch = _always
    for number in range(40):
        url = CERTIFICATE_URL.replace("0123456789abcdef" * 2, f"{number:032x}")
        row = envelope(SigningCertURL=url) | {"Signature": "AAAA"}
        bench.clock.wall_offset_seconds += 30
        await bench.send(post(row), STRANGER)
    assert len(bench.keys._read) == 8
    assert CERTIFICATE_URL in bench.keys._read


async def _always(url: str) -> bytes:
    del url
    return certificate()


async def test_a_kept_certificate_is_checked_like_any_other(tmp_path: Path) -> None:
    """One that has expired, or that somebody has written into the file, is asked for again."""
    path = tmp_path / FILE
    for pem in (certificate(ends=NOW - timedelta(days=1)), certificate("stranger", issuer="Mallory"), b"x"):
        row = {"version": 1, "certificates": {CERTIFICATE_URL: pem.decode()}, "networks": []}
        path.write_text(json.dumps(row))
        bench = Bench(tmp_path)
        assert isinstance(await bench.send(good(), AMAZON), Delivery)
        assert bench.asked == [CERTIFICATE_URL]


@pytest.mark.parametrize("content", ["", "{", "[]", '{"version": 9}', '{"version": 1, "certificates": 5}'])
async def test_a_file_that_cannot_be_read_is_said_and_begun_anew(tmp_path: Path, content: str) -> None:
    """The certificates are fetched again, and kept again."""
    (tmp_path / FILE).write_text(content)
    bench = Bench(tmp_path)
    assert FILE in bench.keys.problem
    assert isinstance(await bench.send(good(), AMAZON), Delivery)
    assert bench.keys.problem == ""
    assert CERTIFICATE_URL in json.loads((tmp_path / FILE).read_text())["certificates"]


async def test_a_file_that_is_missing_is_not_asked_for_again_at_once() -> None:
    """Whoever repeats one name has us ask once in a while; then the host may have it."""
    bench = Bench()
    url = CERTIFICATE_URL.replace("0", "f")
    request = post(envelope(SigningCertURL=url) | {"Signature": "AAAA"})
    for number in range(20):
        await bench.send(request, f"203.0.{number}.1")
    assert bench.asked == [url]
    bench.clock.wall_offset_seconds += MISSING_SECONDS + 1
    await bench.send(request, STRANGER)
    assert bench.asked == [url, url]


def test_daemon_and_relay_keep_them_where_their_state_is(tmp_path: Path) -> None:
    """And both ways into the service, for a clock that is set and for one that is not, share them."""
    context = Context(clock=Still(NOW), runtime_dir=tmp_path, state_dir=tmp_path, inbound={"ses": config})
    door: Any = make_doors(context)["ses"]
    assert door.service._keys is door.patient._keys
    assert door.service._keys._state.path == tmp_path / FILE
