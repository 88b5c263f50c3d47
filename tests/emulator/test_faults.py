# SPDX-License-Identifier: Apache-2.0
"""Every fault that spoils an answer, on every cloud, seen with a raw client.

What is told in a good answer: `test_faults_told`. What a daemon makes of it is tested with the daemon.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping

import aiohttp
import pytest

from spotwatch.emulator import FAULTS, Emulator, clouds
from spotwatch.emulator.faults import SPOILT, TOLD
from spotwatch.errors import ConfigError
from tests.emulator.client import (
    ACTION,
    GOOGLE,
    IDENTITY,
    PAGES,
    TTL,
    V1,
    Got,
    ask,
    headers_for,
    token,
)
from tests.quiet import in_quiet_time, since, virtual_now

ON_EVERY_CLOUD = pytest.mark.parametrize("name", clouds())


async def raw(cloud: Emulator, path: str, headers: Mapping[str, str]) -> bytes:
    """Return every byte of an answer until the connection ends."""
    reader, writer = await asyncio.open_connection("127.0.0.1", cloud.port)
    try:
        lines = [
            f"GET {path} HTTP/1.1",
            "Host: x",
            "Connection: close",
            *(f"{k}: {v}" for k, v in headers.items()),
        ]
        writer.write("\r\n".join([*lines, "", ""]).encode())
        return await reader.read()
    finally:
        writer.close()
        await writer.wait_closed()


def announce(cloud: Emulator) -> None:
    """Put the main notice in force where notices are asked for."""
    if cloud.name != "digitalocean":
        cloud.announce(120)


@ON_EVERY_CLOUD
@pytest.mark.parametrize("status", ["401", "403", "404", "429", "500", "503"])
async def test_statuses(name: str, status: str) -> None:
    """A status comes as often as asked for, then the truth again."""
    path, _ = PAGES[name]
    async with Emulator(name) as cloud:
        announce(cloud)
        headers = await headers_for(cloud)
        cloud.fault(status, times=2)
        got = [await ask(cloud, path, headers) for _ in range(2)]
        again = await ask(cloud, path, await headers_for(cloud))
        assert [(r.status, r.fault) for r in cloud.requests if r.fault] == [(int(status), status)] * 2
    assert [g.status for g in got] == [int(status)] * 2
    assert [g.headers.get("retry-after") for g in got] == ["1" if status == "429" else None] * 2
    assert again.status == 200


@ON_EVERY_CLOUD
@in_quiet_time
async def test_hang(name: str) -> None:
    """No byte comes; the request is on record without an answer."""
    path, page = PAGES[name]
    async with Emulator(name) as cloud:
        headers = await headers_for(cloud)
        cloud.fault("hang", page)
        with pytest.raises(TimeoutError):
            await ask(cloud, path, headers, limit_seconds=0.3)
        other = "/metadata/v1/user-data" if name == "digitalocean" else IDENTITY[name]
        assert (await ask(cloud, other, headers)).status == 200
        assert [r.status for r in cloud.requests if r.fault == "hang"] == [0]


@in_quiet_time
async def test_late_answer() -> None:
    """A hang with seconds is the true answer, late."""
    async with Emulator("gcp") as cloud:
        cloud.fault("hang", times=1, seconds=0.4)
        began = virtual_now()
        got = await ask(cloud, f"{V1}/preempted", GOOGLE)
        assert since(began) == 0.4
    assert got.text == "FALSE"


@ON_EVERY_CLOUD
async def test_refuse_closes_the_port_and_heal_opens_it(name: str) -> None:
    """Nothing listens, the kernel refuses, open connections are gone; the same port works after."""
    async with Emulator(name) as cloud:
        port = cloud.port
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        cloud.fault("refuse")
        assert await reader.read() == b""
        writer.close()
        await writer.wait_closed()
        for _ in range(3):
            with pytest.raises(ConnectionRefusedError):
                await asyncio.open_connection("127.0.0.1", port)
        cloud.heal()
        assert (await ask(cloud, IDENTITY[name], await headers_for(cloud))).status == 200
        assert cloud.port == port


async def test_refuse_and_heal_again_and_again() -> None:
    """Closing and opening in any order leaves the port in the state last asked for."""
    async with Emulator("digitalocean") as cloud:
        for _ in range(20):
            cloud.fault("refuse")
            cloud.heal()
            cloud.heal()
        assert (await ask(cloud, "/metadata/v1/id")).status == 200
        cloud.heal()
        cloud.fault("refuse")
        cloud.fault("refuse")
        cloud.fault("500")
        cloud.heal("500")
        with pytest.raises(aiohttp.ClientConnectorError):
            await ask(cloud, "/metadata/v1/id")


@ON_EVERY_CLOUD
async def test_refuse_of_one_signal_closes_without_an_answer(name: str) -> None:
    """A port cannot refuse one path; the connection ends instead, and other paths work."""
    path, page = PAGES[name]
    async with Emulator(name) as cloud:
        headers = await headers_for(cloud)
        cloud.fault("refuse", page, times=1)
        assert await raw(cloud, path, headers) == b""
        assert (await ask(cloud, IDENTITY[name], headers)).status == 200


@ON_EVERY_CLOUD
async def test_reset_is_a_real_rst(name: str) -> None:
    """The client's socket says ECONNRESET, not end of file."""
    path, page = PAGES[name]
    async with Emulator(name) as cloud:
        headers = await headers_for(cloud)
        cloud.fault("reset", page, times=1)
        with pytest.raises(ConnectionResetError):
            await raw(cloud, path, headers)
        assert (await ask(cloud, IDENTITY[name], headers)).status == 200


@ON_EVERY_CLOUD
async def test_truncated(name: str) -> None:
    """The head promises more than comes."""
    path, page = PAGES[name]
    async with Emulator(name) as cloud:
        announce(cloud)
        headers = await headers_for(cloud)
        whole = await ask(cloud, path, headers)
        cloud.fault("truncated", page, times=2)
        head, _, body = (await raw(cloud, path, headers)).partition(b"\r\n\r\n")
        with pytest.raises(aiohttp.ClientPayloadError):
            await ask(cloud, path, headers)
    assert f"content-length: {len(whole.body)}".encode() in head.lower()
    assert body == whole.body[: len(whole.body) // 2]


@ON_EVERY_CLOUD
@in_quiet_time
async def test_slow_body(name: str) -> None:
    """The head comes at once, the body a byte a second."""
    path, page = PAGES[name]
    async with Emulator(name) as cloud:
        announce(cloud)
        headers = await headers_for(cloud)
        cloud.fault("slow-body", page)
        async with (
            aiohttp.ClientSession() as session,
            session.get(cloud.base_url + path, headers=headers) as got,
        ):
            began = virtual_now()
            first = await got.content.read(1)
            second = await got.content.read(1)
            assert since(began) == 1
    assert (len(first), len(second)) == (1, 1)


@ON_EVERY_CLOUD
async def test_bodies(name: str) -> None:
    """Empty, a captive portal, ten megabytes and JSON of another type are all 200."""
    path, page = PAGES[name]
    got: dict[str, Got] = {}
    async with Emulator(name) as cloud:
        headers = await headers_for(cloud)
        for fault in ("empty", "HTML", "10 MB", "wrong_type"):
            cloud.fault(fault, page, times=1)
            got[fault] = await ask(cloud, path, headers)
        cloud.fault("wrong-type", page, times=1, body=b'{"action":5}')
        own = await ask(cloud, path, headers)
    assert {g.status for g in got.values()} == {200}
    assert got["empty"].body == b""
    assert got["HTML"].headers["content-type"] == "text/html"
    assert got["HTML"].body.startswith(b"<html>")
    assert "metadata-flavor" not in got["HTML"].headers
    assert len(got["10 MB"].body) == 10_000_000
    assert json.loads(got["wrong_type"].body) == 42
    assert own.body == b'{"action":5}'


@ON_EVERY_CLOUD
async def test_redirect_and_who_follows(name: str) -> None:
    """A redirect points to a page that works, so that following it would be seen."""
    path, page = PAGES[name]
    async with Emulator(name) as cloud:
        headers = await headers_for(cloud)
        cloud.fault("redirect", page)
        got = await ask(cloud, path, headers)
        assert got.status == 302
        assert not [r for r in cloud.requests if r.path == "/captive-portal"]
        async with (
            aiohttp.ClientSession() as session,
            session.get(cloud.base_url + path, headers=headers) as end,
        ):
            assert (end.status, end.url.path) == (200, "/captive-portal")
        assert [r.path for r in cloud.requests][-1] == "/captive-portal"


async def test_expiry_ends_every_token() -> None:
    """On AWS the 401 is an expiry: the old token stays refused, a new one works."""
    async with Emulator("aws") as cloud:
        cloud.announce()
        old = await token(cloud)
        cloud.fault("401", "instance-action", times=1)
        assert (await ask(cloud, ACTION, old)).status == 401
        assert (await ask(cloud, ACTION, old)).status == 401
        assert (await ask(cloud, ACTION, await token(cloud))).status == 200


async def test_fault_on_the_token_alone() -> None:
    """The PUT hangs as behind a hop limit of 1, while a token in hand still works."""
    async with Emulator("aws") as cloud:
        cloud.announce()
        headers = await token(cloud)
        cloud.fault("hang", "token")
        with pytest.raises(TimeoutError):
            await ask(cloud, "/latest/api/token", {TTL: "60"}, method="PUT", limit_seconds=0.3)
        assert (await ask(cloud, ACTION, headers)).status == 200


async def test_faults_combine_and_the_newest_spoils() -> None:
    """Told faults add up; of two that spoil, the newer one does, until it is healed."""
    async with Emulator("aws") as cloud:
        cloud.announce()
        headers = await token(cloud)
        cloud.fault("500", "instance-action")
        cloud.fault("403")
        assert (await ask(cloud, ACTION, headers)).status == 403
        cloud.heal("403")
        assert (await ask(cloud, ACTION, headers)).status == 500
        cloud.heal()
        assert (await ask(cloud, ACTION, headers)).status == 200


async def test_retry_after_of_503() -> None:
    """503 says when to come again only when asked to."""
    async with Emulator("digitalocean") as cloud:
        cloud.fault("503", times=1, seconds=7)
        assert (await ask(cloud, "/metadata/v1/id")).headers["retry-after"] == "7"


async def test_mistakes_are_told() -> None:
    """An unknown fault or signal, and a count below one, are refused with what there is."""
    async with Emulator("aws") as cloud:
        with pytest.raises(ConfigError, match="unknown fault '418'; have hang, refuse"):
            cloud.fault("418")
        with pytest.raises(ConfigError, match="unknown signal 'preempted' of aws; have token"):
            cloud.fault("hang", "preempted")
        with pytest.raises(ConfigError, match="times is 0"):
            cloud.fault("hang", times=0)
    with pytest.raises(ConfigError, match="unknown cloud 'aws2'; have aws, gcp"):
        Emulator("aws2")


def test_every_fault_is_described_once() -> None:
    """The two kinds are apart and together the whole."""
    assert not set(SPOILT) & set(TOLD)
    assert {**SPOILT, **TOLD} == FAULTS
    assert all(FAULTS.values())
