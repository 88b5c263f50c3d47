# SPDX-License-Identifier: Apache-2.0
"""What the listener for this machine and its metrics answers, over raw sockets."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

import pytest

from spotwatch.server import MetricsServer
from spotwatch.webhook_guard import is_loopback
from tests.raw_http import ask, get, post, until


@dataclass(slots=True)
class Inside:
    """What a test changes behind the metrics server."""

    healthy: bool = True
    reasons: list[str] = field(default_factory=list)
    accepts: list[str] = field(default_factory=list)
    broken: bool = False
    said: list[str] = field(default_factory=list)

    def render(self, accept: str) -> tuple[bytes, str]:
        """Play the registry."""
        if self.broken:
            raise RuntimeError("registry")
        self.accepts.append(accept)
        if "openmetrics" in accept:
            return b"# EOF\n", "application/openmetrics-text; version=1.0.0; charset=utf-8"
        return b"up 1\n", "text/plain; version=0.0.4; charset=utf-8"

    def server(self, listen: str = "127.0.0.1:0", **options: Any) -> MetricsServer:
        """Return a server that asks this."""
        return MetricsServer(
            listen,
            render=self.render,
            is_healthy=lambda: self.healthy,
            not_ready=lambda: self.reasons,
            status=lambda: {"cases": []},
            say=self.said.append,
            **options,
        )


@pytest.fixture
def inside() -> Inside:
    """Return fresh insides."""
    return Inside()


@pytest.fixture
async def metrics(inside: Inside) -> AsyncIterator[MetricsServer]:
    """Return a bound metrics server."""
    server = inside.server()
    await server.start()
    yield server
    await server.close()


async def test_metrics_follow_the_accept_header(metrics: MetricsServer, inside: Inside) -> None:
    """Text and OpenMetrics are chosen by what the scraper accepts."""
    text = await ask(metrics.port, get("/metrics", Accept="text/plain"))
    openmetrics = await ask(metrics.port, get("/metrics?x=1", Accept="application/openmetrics-text"))
    assert (text.status, text.body) == (200, b"up 1\n")
    assert text.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    assert openmetrics.headers["content-type"].startswith("application/openmetrics-text")


async def test_health_and_readiness_say_what_is_wrong(metrics: MetricsServer, inside: Inside) -> None:
    """Both are 200 when fine and 503 otherwise, readiness with its reasons."""
    assert (await ask(metrics.port, get("/healthz"))).status == 200
    assert (await ask(metrics.port, get("/readyz"))).body == b"ok\n"
    inside.healthy = False
    inside.reasons = ["aws: no answer", "webhook not bound"]
    assert (await ask(metrics.port, get("/healthz"))).status == 503
    ready = await ask(metrics.port, get("/readyz"))
    assert (ready.status, ready.body) == (503, b"aws: no answer\nwebhook not bound\n")


@pytest.mark.parametrize("host", ["127.0.0.1:9475", "localhost:9475", "[::1]:9475", "[::1]", "10.0.0.1"])
async def test_status_is_json_for_this_machine(metrics: MetricsServer, host: str) -> None:
    """A loopback peer that names an address gets the status."""
    reply = await ask(metrics.port, get("/status", Host=host))
    assert reply.status == 200
    assert json.loads(reply.body) == {"cases": []}


async def test_status_is_told_at_an_address_of_this_machine(inside: Inside) -> None:
    """Who listens on an address of the network is asked at it from here too, and is no stranger."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            # Sends nothing: it asks the kernel which of our addresses leads out.
            probe.connect(("198.51.100.1", 9))
        except OSError:
            pytest.skip("lacks an address beside loopback")
        own = probe.getsockname()[0]
    server = inside.server(f"{own}:0")
    await server.start()
    reader, writer = await asyncio.open_connection(own, server.port)
    writer.write(f"GET /status HTTP/1.1\r\nHost: {own}:{server.port}\r\nConnection: close\r\n\r\n".encode())
    head = await asyncio.wait_for(reader.readline(), 10)
    writer.close()
    await writer.wait_closed()
    await server.close()
    assert head == b"HTTP/1.1 200 OK\r\n"


async def test_status_is_refused_through_a_rebound_name(metrics: MetricsServer) -> None:
    """A web page that resolves its own name to 127.0.0.1 does not see the status."""
    assert (await ask(metrics.port, get("/status", Host="evil.example:9475"))).status == 403


def test_only_loopback_counts_as_loopback() -> None:
    """Addresses of other machines, and what is no address, are no loopback."""
    assert all(map(is_loopback, ["127.0.0.1", "127.9.9.9", "::1", "::ffff:127.0.0.1"]))
    assert not any(map(is_loopback, ["10.0.0.1", "::ffff:10.0.0.1", "", "localhost", "fe80::1"]))


async def test_unknown_pages_and_methods_are_refused(metrics: MetricsServer) -> None:
    """There is nothing to post to, and no path is interpreted."""
    assert (await ask(metrics.port, get("/metrics/../etc/passwd"))).status == 404
    assert (await ask(metrics.port, get("//metrics"))).status == 404
    assert (await ask(metrics.port, get("/%6detrics"))).status == 404
    assert (await ask(metrics.port, post("/metrics", b"x"))).status == 405
    assert (await ask(metrics.port, get("/"))).body.count(b"href") == 4


async def test_a_failing_page_is_503_and_said_once(metrics: MetricsServer, inside: Inside) -> None:
    """A registry that raises does not look like a dead daemon, nor fill the log."""
    inside.broken = True
    assert [(await ask(metrics.port, get("/metrics"))).status for _ in range(3)] == [503] * 3
    assert inside.said == ["/metrics: RuntimeError: registry"]


async def test_a_busy_port_is_said_once_and_bound_when_free(inside: Inside) -> None:
    """The watch goes on without the listener, which appears as soon as the port is free."""
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        port = holder.getsockname()[1]
        server = inside.server(f"127.0.0.1:{port}", retry_seconds=0.05)
        await server.start()
        try:
            assert not server.is_bound
            assert f"cannot listen on 127.0.0.1:{port}" in server.problem
            holder.close()
            await until(lambda: server.is_bound)
            assert server.problem == ""
            assert (await ask(port, get("/healthz"))).status == 200
        finally:
            await server.close()
    assert len(inside.said) == 2
    assert inside.said[1] == f"listening on 127.0.0.1:{port} now"


async def test_closing_ends_a_retry_and_an_unknown_host_is_no_crash(inside: Inside) -> None:
    """A host that this machine has not is a problem, not an exception; closing leaves no task."""
    server = inside.server("192.0.2.1:0", retry_seconds=30.0)
    await server.start()
    assert server.problem
    await server.close()
    assert [t.get_name() for t in asyncio.all_tasks() if t.get_name() == "listener-retry"] == []


async def test_no_listener_is_bound_without_an_address(inside: Inside) -> None:
    """An empty `listen` is a listener that never is."""
    server = inside.server("")
    await server.start()
    assert (server.is_bound, server.port, server.problem) == (False, 0, "")
    await server.close()


def has_ipv6() -> bool:
    """Tell whether this machine has an IPv6 loopback."""
    try:
        with socket.socket(socket.AF_INET6) as probe:
            probe.bind(("::1", 0))
    except OSError:
        return False
    return True


@pytest.mark.parametrize(
    ("listen", "host"),
    [
        (":0", "127.0.0.1"),
        pytest.param("[::1]:0", "::1", marks=pytest.mark.skipif(not has_ipv6(), reason="no IPv6 here")),
    ],
)
async def test_every_address_and_ipv6_can_be_bound(inside: Inside, listen: str, host: str) -> None:
    """`:port` and `[::1]:port` are addresses that peers reach."""
    server = inside.server(listen)
    await server.start()
    try:
        assert server.problem == ""
        _, writer = await asyncio.open_connection(host, port_of(server, host))
        writer.close()
        await writer.wait_closed()
    finally:
        await server.close()


def port_of(server: MetricsServer, host: str) -> int:
    """Return the port bound for the family of `host`: two families get two free ports."""
    assert server._sockets is not None
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    return next(int(s.getsockname()[1]) for s in server._sockets.sockets if s.family == family)


def test_an_address_of_no_known_form_is_refused(inside: Inside) -> None:
    """The settings were checked before; a caller of ours that errs is told at once."""
    with pytest.raises(ValueError, match="IPv6"):
        inside.server("::1:9475")
