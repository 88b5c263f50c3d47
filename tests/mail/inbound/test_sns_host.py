# SPDX-License-Identifier: Apache-2.0
"""Where the certificates of SNS are fetched: one host, by TLS, once, briefly, and no further.

The host is played on loopback under its real name. What a certificate must be is tested in test_sns.py.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from aiohttp.abc import AbstractResolver, ResolveResult
from cryptography.hazmat.primitives import serialization

from spotwatch.errors import Malformed, Unavailable
from spotwatch.mail.inbound._sns_certificate import FETCH_SECONDS, MAX_BYTES, NoSuchFile, download
from tests.mail.inbound.requests_ses import (
    CERTIFICATE_URL,
    certificate,
    key_of,
)


class _ToLoopback(AbstractResolver):
    """Every name is 127.0.0.1, at that port."""

    def __init__(self, port: int) -> None:
        self._port = port

    async def resolve(self, host: str, port: int = 0, family: Any = 0) -> list[ResolveResult]:
        """Return the one address."""
        return [
            ResolveResult(hostname=host, host="127.0.0.1", port=self._port, family=family, proto=0, flags=0)
        ]

    async def close(self) -> None:
        """Nothing is open."""


@dataclass
class Tls:
    """A web server with a certificate for the host of the keys, and a client that believes it."""

    answer: Callable[[web.BaseRequest], Any]
    port: int
    roots: ssl.SSLContext
    paths: list[str] = field(default_factory=list)

    async def get(self) -> bytes:
        """Ask it as `Keys` would ask Amazon."""
        connector = aiohttp.TCPConnector(ssl=self.roots, resolver=_ToLoopback(self.port))
        return await download(CERTIFICATE_URL, connector=connector)


@pytest.fixture
async def tls(tmp_path: Path) -> AsyncIterator[Tls]:
    """Give a server that answers as a test says."""
    own = certificate("sns", names=("sns.eu-west-1.amazonaws.com",), signed_by="sns", issuer="SNS")
    secret = key_of("sns").private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    (tmp_path / "own.pem").write_bytes(own + secret)
    server_side = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server_side.load_cert_chain(tmp_path / "own.pem")
    roots = ssl.create_default_context(cadata=own.decode())

    async def handle(request: web.BaseRequest) -> web.StreamResponse:
        made.paths.append(request.path)
        answered: web.StreamResponse = await made.answer(request)
        return answered

    async def plain(request: web.BaseRequest) -> web.StreamResponse:
        return web.Response(body=certificate())

    runner = web.ServerRunner(web.Server(handle), shutdown_timeout=1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0, ssl_context=server_side)
    await site.start()
    made = Tls(plain, runner.addresses[0][1], roots)
    yield made
    await runner.cleanup()


async def test_a_certificate_is_downloaded(tls: Tls) -> None:
    """Over TLS, from the host in the address, without a word about ourselves."""
    assert await tls.get() == certificate()
    assert tls.paths == [CERTIFICATE_URL.removeprefix("https://sns.eu-west-1.amazonaws.com")]


async def test_a_host_that_the_roots_do_not_know_is_not_believed(tls: Tls) -> None:
    """Whoever answers in Amazon's place must have Amazon's certificate."""
    tls.roots = ssl.create_default_context()
    with pytest.raises(Unavailable, match="does not answer"):
        await tls.get()
    assert tls.paths == []


@pytest.mark.hostile(27)
async def test_a_redirect_is_not_followed(tls: Tls) -> None:
    """Not even to the same host."""

    async def away(request: web.BaseRequest) -> web.StreamResponse:
        return web.Response(status=302, headers={"location": CERTIFICATE_URL})

    tls.answer = away
    with pytest.raises(Unavailable, match="answers 302"):
        await tls.get()
    assert len(tls.paths) == 1


@pytest.mark.hostile(27)
async def test_an_endless_answer_is_cut_off(tls: Tls) -> None:
    """Ten megabytes are not read."""
    sent = 0

    async def endless(request: web.BaseRequest) -> web.StreamResponse:
        nonlocal sent
        response = web.StreamResponse()
        await response.prepare(request)
        while sent < 10 * 1024 * 1024:
            await response.write(b"x" * 65536)
            sent += 65536
        return response

    tls.answer = endless
    with pytest.raises(Malformed, match=f"more than {MAX_BYTES}"):
        await tls.get()
    assert sent < 10 * 1024 * 1024


@pytest.mark.hostile(27)
async def test_a_host_that_is_silent_is_left(tls: Tls) -> None:
    """Three seconds, then SNS is told to try again."""
    done = asyncio.Event()

    async def silent(request: web.BaseRequest) -> web.StreamResponse:
        await done.wait()
        return web.Response()

    tls.answer = silent
    began = asyncio.get_running_loop().time()
    with pytest.raises(Unavailable, match="TimeoutError"):
        await tls.get()
    assert asyncio.get_running_loop().time() - began >= FETCH_SECONDS - 0.1
    done.set()


@pytest.mark.parametrize(("status", "is_missing"), [(403, True), (404, True), (500, False)])
async def test_a_file_that_the_host_does_not_have_is_told_from_a_host_that_fails(
    tls: Tls, status: int, is_missing: bool
) -> None:
    """The first is not asked for again at once."""

    async def refuses(request: web.BaseRequest) -> web.StreamResponse:
        return web.Response(status=status)

    tls.answer = refuses
    with pytest.raises(Unavailable, match=f"answers {status}") as caught:
        await tls.get()
    assert isinstance(caught.value, NoSuchFile) == is_missing
