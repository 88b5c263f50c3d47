# SPDX-License-Identifier: Apache-2.0
"""What the listener for webhooks answers, over raw sockets: client libraries send no such things.

It does not test any provider's judgement; the receivers here are played.
"""

from __future__ import annotations

import asyncio
import gzip
import logging
from collections.abc import AsyncIterator
from dataclasses import dataclass

import pytest

from spotwatch.providers import Verdict
from spotwatch.rate_limits import TokenBuckets
from spotwatch.server import WebhookServer
from spotwatch.webhook_guard import Limits
from tests.raw_http import FAST, ROOMY, PlayedReceiver, Reply, ask, post, read_reply, until


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


@pytest.mark.hostile(7)
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
    hook.receiver.verdict = Verdict(status=401, result="unsigned", why="mailgun: another key")
    for _ in range(3):
        reply = await hook.send(b"x")
        assert (reply.status, reply.body) == (401, b"401\n")
        assert "mailgun" not in str(reply.headers)
    assert hook.said == ["webhook digitalocean: mailgun: another key"]
    hook.receiver.verdict = Verdict(status=503, result="full")
    assert (await hook.send(b"x")).headers["retry-after"] == "5"


async def test_a_failing_receiver_is_503_and_said_once(hook: Hook) -> None:
    """A stranger's bytes never end in a 500."""
    hook.receiver.error = ValueError("boom")
    assert [(await hook.send(b"x")).status for _ in range(3)] == [503] * 3
    assert hook.said == ["webhook digitalocean: ValueError: boom"]
    assert hook.results == [("digitalocean", "failed")] * 3


@pytest.mark.hostile(6)
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


@pytest.mark.hostile(6)
@pytest.mark.parametrize(
    "path",
    ["/", "/webhook", "/webhook/", "/webhook/aws", "//webhook/digitalocean", "/webhook/..;/digitalocean",
     "/webhook/%64igitalocean", "/webhook/digitalocean/", "/WEBHOOK/digitalocean"],
)  # fmt: skip
async def test_other_paths_are_404(hook: Hook, path: str) -> None:
    """No path is decoded or tidied, and strangers cannot add metric labels."""
    assert (await ask(hook.server.port, post(path, b"x"))).status == 404
    assert hook.results == []


@pytest.mark.hostile(1)
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


@pytest.mark.hostile(2)
async def test_a_compressed_body_is_never_unpacked(hook: Hook) -> None:
    """A bomb is refused by its header; unpacking would come before the signature."""
    bomb = gzip.compress(bytes(10_000_000))
    assert (await hook.send(bomb, "Content-Encoding: gzip\r\n")).status == 415
    assert hook.receiver.got == []


@pytest.mark.hostile(3)
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


@pytest.mark.hostile(4)
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


@pytest.mark.hostile(4)
async def test_a_slow_body_is_408(hook: Hook) -> None:
    """A body that does not arrive in time is refused and the connection closed."""
    raw = b"POST /webhook/digitalocean HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\nhalf"
    reply = await ask(hook.server.port, raw)
    assert (reply.status, reply.headers["connection"]) == (408, "close")
    assert hook.results == [("digitalocean", "slow")]


@pytest.mark.hostile(18)
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


@pytest.mark.hostile(4)
async def test_a_hundred_silent_peers_do_not_lock_out_a_notice() -> None:
    """At most 64 connections are open, and a real request gets in between them."""
    hook = make_hook(Limits(header_seconds=10.0))
    await hook.server.start()
    writers = [(await asyncio.open_connection("127.0.0.1", hook.server.port))[1] for _ in range(100)]
    try:
        assert hook.server._server is not None
        assert (await hook.send(b"x")).status == 202
        alive = [c for c in hook.server._server.connections if getattr(c, "transport", None) is not None]
        assert len(alive) <= 64
    finally:
        for writer in writers:
            writer.close()
        await hook.server.close()


@pytest.mark.hostile(5)
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
    assert statuses == [202] * 5 + [503]
    assert len(hook.receiver.got) == 5


async def test_what_is_vouched_for_counts_less_against_its_address() -> None:
    """A service that hands on a flood is still heard when the genuine mail comes."""
    hook = make_hook(FAST, TokenBuckets(peer_rate=0.001, peer_burst=5))
    hook.receiver.verdict = Verdict(status=202, result="accepted", is_vouched=True)
    await hook.server.start()
    try:
        assert [(await hook.send(b"x")).status for _ in range(20)] == [202] * 20
        hook.receiver.verdict = Verdict(status=401, result="unsigned")
        assert [(await hook.send(b"x")).status for _ in range(5)] == [401, 401, 401, 503, 503]
    finally:
        await hook.server.close()
