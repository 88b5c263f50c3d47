# SPDX-License-Identifier: Apache-2.0
"""The shared metadata client: each way of going wrong is one error, and nothing is followed or kept."""

from __future__ import annotations

import asyncio
import gzip
from pathlib import Path

import pytest

from spotwatch.errors import Malformed, Unavailable
from spotwatch.providers._metadata import MAX_BODY_BYTES, MetadataClient
from tests.providers.raw_server import (
    FAULTS,
    PAYLOAD_FAULTS,
    RawServer,
    after,
    body,
    drip,
    endless,
    hang,
    in_turn,
    raw,
    reset,
    status,
)
from tests.quiet import in_quiet_time, since, virtual_now


@pytest.mark.parametrize("name", [name for name in FAULTS if name not in PAYLOAD_FAULTS])
@in_quiet_time
async def test_each_fault_is_exactly_its_error(name: str) -> None:
    """Each fault becomes its own error, within the time limit, and the client goes on."""
    fault = FAULTS[name]
    routes = {"/x": fault.behave, "/fine": body("fine")}
    async with RawServer(routes) as server, MetadataClient(server.url, timeout_seconds=0.3) as client:
        began = virtual_now()
        with pytest.raises(fault.error) as caught:
            await client.get("/x")
        assert type(caught.value) is fault.error
        assert since(began) <= 0.3
        assert "GET /x" in str(caught.value)
        assert "\n" not in str(caught.value)
        assert (await client.get("/fine")).text() == "fine"


@pytest.mark.hostile(62)
@in_quiet_time
async def test_a_refused_connection_is_unavailable() -> None:
    """Nobody listens: Unavailable, and not because of the time limit."""
    async with RawServer() as server:
        url = server.url
    async with MetadataClient(url, timeout_seconds=5) as client:
        with pytest.raises(Unavailable, match="Connect") as caught:
            await client.get("/x")
    assert not isinstance(caught.value.__cause__, TimeoutError)


async def test_an_unknown_host_is_unavailable() -> None:
    """A name that does not resolve is Unavailable."""
    async with MetadataClient("http://metadata.invalid", timeout_seconds=5) as client:
        with pytest.raises(Unavailable):
            await client.get("/x")


@in_quiet_time
async def test_a_timeout_can_be_told_from_other_failures() -> None:
    """Only a time-out has a TimeoutError as its cause, and it names the limit."""
    async with RawServer({"/x": hang}) as server, MetadataClient(server.url, timeout_seconds=5) as client:
        with pytest.raises(Unavailable, match=r"within 0\.1 s") as caught:
            await client.get("/x", timeout_seconds=0.1)
        assert isinstance(caught.value.__cause__, TimeoutError)
        server.routes["/x"] = status(503)
        with pytest.raises(Unavailable) as caught:
            await client.get("/x")
        assert not isinstance(caught.value.__cause__, TimeoutError)


@pytest.mark.hostile(62)
@in_quiet_time
async def test_the_limit_counts_the_whole_request() -> None:
    """A server that sends a byte now and then is given up when the limit is over."""
    async with RawServer({"/x": drip}) as server, MetadataClient(server.url, timeout_seconds=0.3) as client:
        began = virtual_now()
        with pytest.raises(Unavailable):
            await client.get("/x")
        assert since(began) == 0.3


@in_quiet_time
async def test_a_limit_of_nothing_is_a_timeout() -> None:
    """A request whose time is used up already fails at once instead of waiting for ever."""
    async with RawServer({"/x": hang}) as server, MetadataClient(server.url, timeout_seconds=5) as client:
        with pytest.raises(Unavailable):
            await client.get("/x", timeout_seconds=0)


@in_quiet_time
async def test_cancelling_from_outside_is_not_swallowed() -> None:
    """The caller's own time-out stays the caller's."""
    async with RawServer({"/x": hang}) as server, MetadataClient(server.url, timeout_seconds=5) as client:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.1):
                await client.get("/x")


@pytest.mark.hostile(64)
@pytest.mark.parametrize("code", [301, 302, 303, 307, 308])
@in_quiet_time
async def test_redirects_are_never_followed(code: int) -> None:
    """A redirect is Malformed, and its target is not asked."""
    async with RawServer({"/there": body("believed")}) as server:
        server.routes["/x"] = status(code, {"Location": f"{server.url}/there"})
        async with MetadataClient(server.url, timeout_seconds=2) as client:
            with pytest.raises(Malformed, match="redirect"):
                await client.get("/x")
        assert [r.path for r in server.requests] == ["/x"]


@pytest.mark.hostile(66)
@in_quiet_time
async def test_proxies_of_the_environment_are_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    """Proxy variables, upper and lower case, change nothing."""
    async with RawServer() as proxy, RawServer({"/x": body("direct")}) as server:
        for name in ("HTTP_PROXY", "http_proxy", "HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy"):
            monkeypatch.setenv(name, proxy.url)
        monkeypatch.delenv("NO_PROXY", raising=False)
        monkeypatch.delenv("no_proxy", raising=False)
        async with MetadataClient(server.url, timeout_seconds=2) as client:
            assert (await client.get("/x")).text() == "direct"
        assert proxy.requests == []


@in_quiet_time
async def test_a_netrc_gives_no_credentials(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A netrc for the host is not read: nothing secret goes to a link-local address."""
    netrc = tmp_path / "netrc"
    netrc.write_text("default login me password secret\n")
    netrc.chmod(0o600)
    monkeypatch.setenv("NETRC", str(netrc))
    async with (
        RawServer({"/x": body("ok")}) as server,
        MetadataClient(server.url, timeout_seconds=2) as client,
    ):
        await client.get("/x")
    assert server.requests[0].values("Authorization") == []


@in_quiet_time
async def test_the_request_says_no_more_than_it_must() -> None:
    """Headers are ours alone, compression is refused beforehand, and an empty PUT has no type."""
    async with (
        RawServer({"/x": body("ok")}) as server,
        MetadataClient(server.url, timeout_seconds=2) as client,
    ):
        await client.get("/x", headers={"Metadata": "true"}, params={"a": "b c"})
        await client.request("PUT", "/x")
    get, put = server.requests
    assert {name for name, _ in get.headers} == {
        "host",
        "user-agent",
        "accept",
        "accept-encoding",
        "metadata",
    }
    assert get.values("Accept-Encoding") == ["identity"]
    assert get.values("User-Agent") == ["spotwatch"]
    assert get.target in ("/x?a=b+c", "/x?a=b%20c")
    assert put.values("Content-Length") == ["0"]
    assert put.values("Content-Type") == []


@in_quiet_time
async def test_cookies_are_not_kept() -> None:
    """A cookie that a server sets is not sent back."""
    async with RawServer({"/x": body("ok", headers={"Set-Cookie": "a=b; Path=/"})}) as server:
        async with MetadataClient(server.url.replace("127.0.0.1", "localhost"), timeout_seconds=2) as client:
            await client.get("/x")
            await client.get("/x")
        assert server.requests[1].values("Cookie") == []


@in_quiet_time
async def test_a_compressed_body_is_refused_unread() -> None:
    """A bomb is named, not unpacked; `identity` is no compression."""
    bomb = gzip.compress(b"0" * 50_000_000)
    routes = {
        "/bomb": body(bomb, headers={"Content-Encoding": "gzip"}),
        "/plain": body("plain", headers={"Content-Encoding": "Identity"}),
    }
    async with RawServer(routes) as server, MetadataClient(server.url, timeout_seconds=5) as client:
        with pytest.raises(Malformed, match="'gzip'"):
            await client.get("/bomb")
        assert (await client.get("/plain")).text() == "plain"


@pytest.mark.hostile(62)
@in_quiet_time
async def test_the_cap_is_exact() -> None:
    """64 KiB pass, one byte more is refused and the first 64 KiB are kept for inspection."""
    routes = {"/fits": body(b"x" * MAX_BODY_BYTES), "/over": body(b"x" * (MAX_BODY_BYTES + 1))}
    async with RawServer(routes) as server, MetadataClient(server.url, timeout_seconds=5) as client:
        assert len((await client.get("/fits")).body) == MAX_BODY_BYTES
        with pytest.raises(Malformed, match="65536") as caught:
            await client.get("/over")
        assert len(caught.value.body) == MAX_BODY_BYTES


@pytest.mark.hostile(62)
@in_quiet_time
async def test_an_endless_body_is_dropped_early() -> None:
    """A body without an end is cut at the cap, long before the time limit, and its connection closed."""
    async with RawServer({"/x": endless}) as server, MetadataClient(server.url, timeout_seconds=10) as client:
        began = virtual_now()
        with pytest.raises(Malformed):
            await client.get("/x")
        assert since(began) < 1
        await server.wait_until_idle()


@in_quiet_time
async def test_an_error_page_never_delays_an_accepted_status() -> None:
    """A 404 that the caller accepts is an answer although its page never ends or is huge."""
    page = b"HTTP/1.1 404 Not Found\r\nContent-Length: 900000\r\n\r\n<html>"

    async def stuck(request: object, writer: asyncio.StreamWriter) -> None:
        writer.write(page)
        await asyncio.Event().wait()

    async with (
        RawServer({"/stuck": stuck, "/huge": body(b"x" * 900_000, code=404)}) as server,
        MetadataClient(server.url, timeout_seconds=2) as client,
    ):
        for path in ("/stuck", "/huge"):
            began = virtual_now()
            reply = await client.get(path, accept=(200, 404))
            assert (reply.status, reply.body) == (404, b"")
            assert since(began) == 0


@in_quiet_time
async def test_connections_are_kept_and_replaced() -> None:
    """Polls share one connection, also over 404s; one that the server has closed costs no poll."""
    async with (
        RawServer({"/x": body("ok")}) as server,
        MetadataClient(server.url, timeout_seconds=2) as client,
    ):
        for _ in range(3):
            await client.get("/x")
            await client.get("/none", accept=(200, 404))
        assert server.connections == 1
        server.routes["/x"] = in_turn(reset, body("again"))
        assert (await client.get("/x")).text() == "again"


@in_quiet_time
async def test_http_1_0_is_understood() -> None:
    """EC2's metadata service has been seen to answer in HTTP/1.0 without a length."""
    answer = b"HTTP/1.0 200 OK\r\nServer: EC2ws\r\nConnection: close\r\n\r\nInService"
    async with (
        RawServer({"/x": raw(answer)}) as server,
        MetadataClient(server.url, timeout_seconds=2) as client,
    ):
        assert (await client.get("/x")).text() == "InService"


@pytest.mark.parametrize(
    ("code", "header", "wish"),
    [
        (429, "3", 3.0),
        (503, "0", 0.0),
        (503, "120", 120.0),
        (500, "3", None),
        (429, "", None),
        (429, "-1", None),
        (429, "1.5", None),
        (429, "Fri, 31 Dec 1999 23:59:59 GMT", None),
        (429, "9" * 500, 999999.0),
        (429, "\u00b2", None),
    ],
)
@in_quiet_time
async def test_retry_after_is_read_in_whole_seconds(code: int, header: str, wish: float | None) -> None:
    """Retry-After counts with 429 and 503, in seconds only, and cannot overflow."""
    async with (
        RawServer({"/x": status(code, {"Retry-After": header})}) as server,
        MetadataClient(server.url, timeout_seconds=2) as client,
    ):
        with pytest.raises(Unavailable) as caught:
            await client.get("/x")
    assert caught.value.retry_after_seconds == wish


@in_quiet_time
async def test_use_outside_the_context_is_a_mistake_of_ours() -> None:
    """A client that was not entered, or was left, refuses to work."""
    client = MetadataClient("http://127.0.0.1:1", timeout_seconds=1)
    with pytest.raises(RuntimeError, match="outside"):
        await client.get("/x")


@in_quiet_time
async def test_nothing_is_left_after_exit() -> None:
    """Neither a connection nor a task outlives the context, idle or in the middle of a request."""
    before = asyncio.all_tasks()
    async with RawServer({"/x": body("ok"), "/slow": after(30, body("late"))}) as server:
        async with MetadataClient(server.url, timeout_seconds=5) as client:
            await client.get("/x")
            slow = asyncio.create_task(client.get("/slow"))
            await server.wait_for(lambda: server.asked("/slow") == 1)
            await client.get("/x")
            assert server.open_connections == 2
            slow.cancel()
            await asyncio.gather(slow, return_exceptions=True)
        await server.wait_until_idle()
        assert asyncio.all_tasks() == before
