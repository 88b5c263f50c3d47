# SPDX-License-Identifier: Apache-2.0
"""What the two listeners answer, over raw sockets: a client library would never send what strangers send.

It does not test any provider's judgement; the receivers here are played.
"""

from __future__ import annotations

import asyncio
import gzip
import json
import logging
import socket
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest

from spotwatch.providers import Received, Verdict
from spotwatch.server import MetricsServer, WebhookServer
from spotwatch.webhook_guard import Limits, TokenBuckets, is_loopback

FAST = Limits(
    header_seconds=1.0, body_seconds=1.0, request_seconds=5.0, keepalive_seconds=1.0, lingering_seconds=0.1
)
ROOMY = TokenBuckets(peer_rate=1e6, peer_burst=1e6, total_rate=1e6, total_burst=1e6)


@dataclass(slots=True)
class Reply:
    """One parsed answer."""

    status: int
    headers: Mapping[str, str]
    body: bytes


@dataclass(slots=True)
class PlayedReceiver:
    """Keep what came and answer as told."""

    verdict: Verdict = field(default_factory=lambda: Verdict(status=202, result="accepted"))
    error: Exception | None = None
    got: list[Received] = field(default_factory=list)

    async def receive(self, request: Received) -> Verdict:
        """Keep the request."""
        self.got.append(request)
        if self.error is not None:
            raise self.error
        return self.verdict


async def read_reply(reader: asyncio.StreamReader) -> Reply:
    """Read one answer with a Content-Length."""
    head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 5)
    status, *lines = head.decode().split("\r\n")
    headers = {k.strip().lower(): v.strip() for k, _, v in (line.partition(":") for line in lines) if k}
    body = await asyncio.wait_for(reader.readexactly(int(headers.get("content-length", "0"))), 5)
    return Reply(int(status.split()[1]), headers, body)


async def ask(port: int, raw: bytes) -> Reply:
    """Send bytes on a connection of their own and return the first answer."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(raw)
        return await read_reply(reader)
    finally:
        writer.close()
        await writer.wait_closed()


def get(path: str, **headers: str) -> bytes:
    """Return a GET as bytes."""
    lines = "".join(f"{k.replace('_', '-')}: {v}\r\n" for k, v in {"Host": "127.0.0.1", **headers}.items())
    return f"GET {path} HTTP/1.1\r\n{lines}\r\n".encode()


def post(path: str, body: bytes, extra: str = "") -> bytes:
    """Return a POST as bytes; `extra` holds whole header lines."""
    return f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n{extra}\r\n".encode() + body


async def until(condition: Callable[[], bool], seconds: float = 15.0) -> None:
    """Wait for a condition with a time limit."""
    async with asyncio.timeout(seconds):
        while not condition():  # noqa: ASYNC110 - the condition is about sockets, which have no event
            await asyncio.sleep(0.01)


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


@dataclass(slots=True)
class Hook:
    """A webhook server with what it told its owner."""

    server: WebhookServer
    receiver: PlayedReceiver
    results: list[tuple[str, str]]
    said: list[str]

    async def send(self, body: bytes, extra: str = "") -> Reply:
        """Post to the played provider."""
        return await ask(self.server.port, post("/webhook/digitalocean", body, extra))


def make_hook(limits: Limits = FAST, buckets: TokenBuckets = ROOMY) -> Hook:
    """Return a hook that is not yet bound."""
    receiver, results, said = PlayedReceiver(), [], []  # type: ignore[var-annotated]  # typed by Hook
    server = WebhookServer(
        "127.0.0.1:0",
        receivers={"digitalocean": receiver},
        on_request=lambda provider, result: results.append((provider, result)),
        say=said.append,
        limits=limits,
        buckets=buckets,
    )
    return Hook(server, receiver, results, said)


@pytest.fixture
async def hook() -> AsyncIterator[Hook]:
    """Return a bound webhook server with short limits."""
    made = make_hook()
    await made.server.start()
    yield made
    await made.server.close()


async def test_a_receiver_gets_raw_bytes_and_headers_sent_once(hook: Hook) -> None:
    """The body is not touched, and a header sent twice cannot be chosen."""
    body = b'{"a": "\xff\x00"} '
    reply = await hook.send(
        body, "Webhook-Id: a\r\nX-Two: 1\r\nx-two: 2\r\nContent-Type: multipart/form-data\r\n"
    )
    assert (reply.status, reply.body) == (202, b"202\n")
    [got] = hook.receiver.got
    assert got.body == body
    assert got.headers["webhook-id"] == "a"
    assert "x-two" not in got.headers
    assert got.peer == "127.0.0.1"
    assert hook.results == [("digitalocean", "accepted")]


@pytest.mark.parametrize(
    "content_type", ["application/json; charset=bogus", "multipart/form-data", ";;;", "a" * 900]
)
async def test_content_types_never_matter(hook: Hook, content_type: str) -> None:
    """What breaks a parser of forms or charsets is never given to one."""
    assert (await hook.send(b"x", f"Content-Type: {content_type}\r\n")).status == 202


async def test_the_verdict_is_the_answer_and_nothing_else(hook: Hook) -> None:
    """Unsigned callers learn the status and no reason."""
    hook.receiver.verdict = Verdict(status=401, result="unsigned")
    reply = await hook.send(b"x")
    assert (reply.status, reply.body) == (401, b"401\n")
    hook.receiver.verdict = Verdict(status=503, result="full")
    assert (await hook.send(b"x")).headers["retry-after"] == "5"


async def test_a_failing_receiver_is_503_and_said_once(hook: Hook) -> None:
    """A stranger's bytes never end in a 500."""
    hook.receiver.error = ValueError("boom")
    assert [(await hook.send(b"x")).status for _ in range(3)] == [503] * 3
    assert hook.said == ["webhook digitalocean: ValueError: boom"]
    assert hook.results == [("digitalocean", "failed")] * 3


@pytest.mark.parametrize("method", ["GET", "HEAD", "PUT", "OPTIONS", "DELETE"])
async def test_only_post_is_taken(hook: Hook, method: str) -> None:
    """Other methods are 405 and reach no receiver."""
    raw = f"{method} /webhook/digitalocean HTTP/1.1\r\nHost: x\r\n\r\n".encode()
    reader, writer = await asyncio.open_connection("127.0.0.1", hook.server.port)
    writer.write(raw)
    head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 5)
    writer.close()
    await writer.wait_closed()
    assert head.startswith(b"HTTP/1.1 405")
    assert hook.results == [("digitalocean", "bad_method")]


@pytest.mark.parametrize(
    "path",
    ["/", "/webhook", "/webhook/", "/webhook/aws", "//webhook/digitalocean", "/webhook/..;/digitalocean",
     "/webhook/%64igitalocean", "/webhook/digitalocean/", "/WEBHOOK/digitalocean"],
)  # fmt: skip
async def test_other_paths_are_404(hook: Hook, path: str) -> None:
    """No path is decoded or tidied, and strangers cannot add metric labels."""
    assert (await ask(hook.server.port, post(path, b"x"))).status == 404
    assert hook.results == []


@pytest.mark.parametrize("framing", ["length", "chunked"])
async def test_one_byte_over_the_limit_is_413(framing: str) -> None:
    """The size counts with and without a Content-Length."""
    hook = make_hook(Limits(body_bytes=1000, lingering_seconds=0.1))
    await hook.server.start()
    try:
        for size, status in ((1000, 202), (1001, 413)):
            body = b"x" * size
            raw = post("/webhook/digitalocean", body)
            if framing == "chunked":
                raw = (
                    b"POST /webhook/digitalocean HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
                    + f"{size:x}\r\n".encode() + body + b"\r\n0\r\n\r\n"
                )  # fmt: skip
            assert (await ask(hook.server.port, raw)).status == status
    finally:
        await hook.server.close()
    assert [result for _, result in hook.results] == ["accepted", "too_large"]


async def test_a_compressed_body_is_never_unpacked(hook: Hook) -> None:
    """A bomb is refused by its header; unpacking would come before the signature."""
    bomb = gzip.compress(bytes(10_000_000))
    assert (await hook.send(bomb, "Content-Encoding: gzip\r\n")).status == 415
    assert hook.receiver.got == []


@pytest.mark.parametrize(
    "head",
    [
        "Content-Length: -1",
        "Content-Length: 3\r\nContent-Length: 4",
        "Content-Length: 3\r\nTransfer-Encoding: chunked",
        "X-Long: " + "a" * 20_000,
        "\r\n".join(f"X-{n}: 1" for n in range(500)),
        "Bad Header: <script>",
    ],
)
async def test_what_is_no_http_gets_a_constant_400(
    hook: Hook, head: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Neither the answer nor the log repeats what a stranger sent."""
    with caplog.at_level(logging.DEBUG):
        raw = f"POST /webhook/digitalocean HTTP/1.1\r\nHost: x\r\n{head}\r\n\r\nabc".encode()
        reply = await ask(hook.server.port, raw)
    assert (reply.status, reply.body, reply.headers["server"]) == (400, b"400\n", "spotwatch")
    assert [r for r in caplog.records if r.name != "asyncio"] == []
    assert hook.receiver.got == []


@pytest.mark.parametrize("sent", [b"", b"POST /webhook/digitalocean HTTP/1.1\r\nHost:"])
async def test_silent_and_slow_peers_are_cut_off(hook: Hook, sent: bytes) -> None:
    """Who does not complete the headers in time is gone, and costs nothing more."""
    reader, writer = await asyncio.open_connection("127.0.0.1", hook.server.port)
    writer.write(sent)
    with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
        await asyncio.wait_for(reader.readexactly(1), 5)
    writer.close()


async def test_a_second_request_has_a_time_limit_too(hook: Hook) -> None:
    """A kept connection that dribbles its next headers is cut off after the keep-alive time."""
    reader, writer = await asyncio.open_connection("127.0.0.1", hook.server.port)
    writer.write(post("/webhook/digitalocean", b"x"))
    assert (await read_reply(reader)).status == 202
    writer.write(b"POST /webhook/digi")
    with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
        await asyncio.wait_for(reader.readexactly(1), 5)
    writer.close()


async def test_a_slow_body_is_408(hook: Hook) -> None:
    """A body that does not arrive in time is refused and the connection closed."""
    raw = b"POST /webhook/digitalocean HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\nhalf"
    reply = await ask(hook.server.port, raw)
    assert (reply.status, reply.headers["connection"]) == (408, "close")
    assert hook.results == [("digitalocean", "slow")]


async def test_a_peer_that_leaves_midway_is_no_event(hook: Hook, caplog: pytest.LogCaptureFixture) -> None:
    """Half a body reaches no receiver and no traceback reaches the log."""
    with caplog.at_level(logging.DEBUG):
        _, writer = await asyncio.open_connection("127.0.0.1", hook.server.port)
        writer.write(b"POST /webhook/digitalocean HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\nhalf")
        await writer.drain()
        writer.transport.abort()
        await until(lambda: hook.results != [])
    assert hook.results == [("digitalocean", "aborted")]
    assert hook.receiver.got == []
    assert [r for r in caplog.records if r.name != "asyncio"] == []


async def test_expect_continue_is_answered_before_the_body(hook: Hook) -> None:
    """A client that waits for 100 Continue, as curl does, is not kept waiting."""
    reader, writer = await asyncio.open_connection("127.0.0.1", hook.server.port)
    head = (
        "POST /webhook/digitalocean HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\nExpect: 100-continue\r\n\r\n"
    )
    writer.write(head.encode())
    interim = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 5)
    assert interim.startswith(b"HTTP/1.1 100")
    writer.write(b"x")
    assert (await read_reply(reader)).status == 202
    writer.close()
    await writer.wait_closed()


async def test_forty_silent_peers_do_not_lock_out_a_notice() -> None:
    """At most 32 connections are open, and a real request gets in between them."""
    hook = make_hook(Limits(header_seconds=10.0))
    await hook.server.start()
    writers = [(await asyncio.open_connection("127.0.0.1", hook.server.port))[1] for _ in range(40)]
    try:
        assert hook.server._server is not None
        assert (await hook.send(b"x")).status == 202
        alive = [c for c in hook.server._server.connections if getattr(c, "transport", None) is not None]
        assert len(alive) <= 32
    finally:
        for writer in writers:
            writer.close()
        await hook.server.close()


async def test_a_full_house_of_running_requests_refuses_the_next() -> None:
    """Nobody whose request is under way is thrown out for a newcomer."""
    hook = make_hook(Limits(connections=2, body_seconds=10.0))
    await hook.server.start()
    half = b"POST /webhook/digitalocean HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\na"
    first = [await asyncio.open_connection("127.0.0.1", hook.server.port) for _ in range(2)]
    try:
        for _, writer in first:
            writer.write(half)
        server = hook.server._server
        assert server is not None
        await until(lambda: sum(not getattr(c, "waits_for_headers", True) for c in server.connections) == 2)
        reader, late = await asyncio.open_connection("127.0.0.1", hook.server.port)
        with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
            await asyncio.wait_for(reader.readexactly(1), 5)
        late.close()
        for reader, writer in first:
            writer.write(b"b")
            assert (await read_reply(reader)).status == 202
    finally:
        for _, writer in first:
            writer.close()
        await hook.server.close()


async def test_a_pipelining_peer_is_rate_limited_and_the_loop_lives() -> None:
    """A thousand requests on one connection end at the burst, with no request served after it."""
    hook = make_hook(FAST, TokenBuckets(peer_rate=0.001, peer_burst=5))
    await hook.server.start()
    try:
        reader, writer = await asyncio.open_connection("127.0.0.1", hook.server.port)
        writer.write(post("/webhook/digitalocean", b"x") * 1000)
        statuses = [(await read_reply(reader)).status for _ in range(6)]
        writer.close()
    finally:
        await hook.server.close()
    assert statuses == [202] * 5 + [429]
    assert len(hook.receiver.got) == 5


def test_buckets_refill_and_one_peer_does_not_empty_anothers() -> None:
    """Each peer has its own rate, an IPv6 /64 is one peer, and all share a total."""
    buckets = TokenBuckets(peer_rate=1, peer_burst=2, total_rate=1, total_burst=5)
    assert [buckets.take("a", 0.0) for _ in range(3)] == [True, True, False]
    assert [buckets.take("2001:db8::1", 0.0), buckets.take("2001:db8::2", 0.0)] == [True, True]
    assert not buckets.take("2001:db8::3", 0.0)
    assert [buckets.take("b", 0.0), buckets.take("c", 0.0)] == [True, False]
    assert buckets.take("a", 1.0)


def test_buckets_remember_a_bounded_number_of_peers() -> None:
    """A stranger with many addresses does not fill the memory."""
    buckets = TokenBuckets()
    for n in range(3000):
        buckets.take(f"10.0.{n // 256}.{n % 256}", float(n))
    assert len(buckets._levels) <= 1024
