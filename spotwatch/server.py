# SPDX-License-Identifier: Apache-2.0
"""The two HTTP listeners: metrics and health for those inside, webhooks for those who can sign.

Neither may harm the watch: a busy port is tried again, a handler that fails answers 503, and no endpoint
does anything without authentication. It does not know what a metric, a case or a signature is.
"""

from __future__ import annotations

import asyncio
import ipaddress
import json
import re
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from typing import Any

# Not `aiohttp.web`, which brings a whole framework: 1.4 MiB that a daemon keeps for ever.
from aiohttp.web_request import BaseRequest
from aiohttp.web_response import Response, StreamResponse, json_response

from spotwatch.listener import RETRY_SECONDS, Listener
from spotwatch.providers import Receiver
from spotwatch.rate_limits import TokenBuckets
from spotwatch.received import Received, Verdict
from spotwatch.webhook_guard import (
    BodyBroken,
    BodyRoom,
    BodyTooLarge,
    Connection,
    Limits,
    NoRoom,
    is_loopback,
    peer_of,
    read_body,
    refuse,
)

_RECEIVE_SECONDS = 5.0
# Plain words only: whatever a proxy might read differently (`..`, `%2e`, `;`, `//`) is no path of ours.
_PATH = re.compile(r"/webhook/(?P<name>[a-z0-9_]{1,64})(?:/(?P<more>[a-z0-9_]{1,64}(?:/[a-z0-9_]{1,64})?))?")

_INDEX = (
    "<!doctype html><title>spotwatch</title><h1>spotwatch</h1>"
    '<ul><li><a href="/metrics">/metrics</a><li><a href="/healthz">/healthz</a>'
    '<li><a href="/readyz">/readyz</a><li><a href="/status">/status</a></ul>\n'
)


class MetricsServer(Listener):
    """GET /metrics, /healthz, /readyz and /status; nothing here changes anything.

    Args:
        listen: `host:port`; empty: none.
        render: given the Accept header, returns the metrics and their Content-Type.
        is_healthy: whether the daemon's loop still turns.
        not_ready: returns the reasons why a reclaim might be missed just now; none: ready.
        status: returns JSON types; shown to this machine only.
        say: takes one line for the log.
        limits: what a peer may cost.
        retry_seconds: between two tries to bind.
    """

    def __init__(
        self,
        listen: str,
        *,
        render: Callable[[str], tuple[bytes, str]],
        is_healthy: Callable[[], bool],
        not_ready: Callable[[], list[str]],
        status: Callable[[], Mapping[str, Any]],
        say: Callable[[str], None],
        limits: Limits | None = None,
        retry_seconds: float = RETRY_SECONDS,
    ) -> None:
        super().__init__(
            listen, self._answer, say=say, limits=limits or Limits(), retry_seconds=retry_seconds
        )
        self._render = render
        self._is_healthy = is_healthy
        self._not_ready = not_ready
        self._status = status
        self._said: Counter[str] = Counter()
        self._pages: Mapping[str, Callable[[BaseRequest], Response]] = {
            "/": lambda _: Response(text=_INDEX, content_type="text/html"),
            "/metrics": self._metrics_page,
            "/healthz": self._health_page,
            "/readyz": self._ready_page,
            "/status": self._status_page,
        }

    async def _answer(self, request: BaseRequest) -> StreamResponse:
        page = self._pages.get(request.raw_path.partition("?")[0])
        if page is None:
            return refuse(404)
        if request.method not in ("GET", "HEAD"):
            return refuse(405, Allow="GET, HEAD")
        try:
            response = page(request)
        except Exception as error:  # noqa: BLE001 - a page that fails must not look like a dead daemon
            _say_once(self._said, self._say, f"{request.raw_path[:40]}: {type(error).__name__}: {error}")
            return refuse(503)
        response.headers["Cache-Control"] = "no-store"
        response.headers["X-Content-Type-Options"] = "nosniff"
        return response

    def _metrics_page(self, request: BaseRequest) -> Response:
        body, content_type = self._render(request.headers.get("Accept", ""))
        return Response(body=body, headers={"Content-Type": content_type})

    def _health_page(self, _: BaseRequest) -> Response:
        return Response(text="ok\n") if self._is_healthy() else Response(status=503, text="stuck\n")

    def _ready_page(self, _: BaseRequest) -> Response:
        reasons = self._not_ready()
        if not reasons:
            return Response(text="ok\n")
        return Response(status=503, text="".join(f"{reason}\n" for reason in reasons))

    def _status_page(self, request: BaseRequest) -> Response:
        # The Host check keeps a web page on this machine from reading it through a name of its own
        # that resolves to 127.0.0.1 (DNS rebinding).
        if not _is_this_machine(request) or not _names_this_machine(request.headers.get("Host", "")):
            return refuse(403)
        return json_response(self._status(), dumps=lambda value: json.dumps(value, indent=1) + "\n")


class WebhookServer(Listener):
    """POST /webhook/<provider>[/<more>]: each request limited, read once as raw bytes, given to its receiver.

    Never a 500, whatever comes: a receiver that fails is said once and answered with 503, so that the
    sender tries again.

    Args:
        listen: `host:port`; empty: none.
        receivers: by provider name; other paths are 404.
        on_request: takes the provider and the result of each request for it. Beside the results of
            `Verdict`: bad_method, slow, too_large, encoded, limited, aborted, failed.
        say: takes one line for the log.
        limits: what a peer may cost.
        buckets: how often a peer may ask.
        trusted_proxies: peers that say whom they speak for.
        retry_seconds: between two tries to bind.
    """

    def __init__(
        self,
        listen: str,
        *,
        receivers: Mapping[str, Receiver],
        on_request: Callable[[str, str], None],
        say: Callable[[str], None],
        limits: Limits | None = None,
        buckets: TokenBuckets | None = None,
        trusted_proxies: Collection[str] = (),
        retry_seconds: float = RETRY_SECONDS,
    ) -> None:
        self._kept_limits = limits or Limits()
        super().__init__(listen, self._answer, say=say, limits=self._kept_limits, retry_seconds=retry_seconds)
        self._receivers = receivers
        self._on_request = on_request
        self._buckets = buckets or TokenBuckets()
        self._room = BodyRoom(self._kept_limits)
        self._trusted_proxies = frozenset(trusted_proxies)
        self._said: Counter[str] = Counter()

    async def _answer(self, request: BaseRequest) -> StreamResponse:
        name, path = _split(request.raw_path)
        receiver = self._receivers.get(name)
        if receiver is None:
            return refuse(404)
        with self._room.holding(request):
            try:
                received = await self._admit(request, path)
            except _Refused as refused:
                self._on_request(name, refused.result)
                return refuse(refused.status, **refused.headers)
            verdict = await self._receive(name, receiver, received)
        if verdict.is_vouched:
            self._buckets.give_back(received.peer)
        self._on_request(name, verdict.result)
        if verdict.why:
            _say_once(self._said, self._say, f"webhook {name}: {verdict.why[:200]}")
        if verdict.status == 503:  # noqa: PLR2004 - HTTP's own number
            return refuse(503, **{"Retry-After": "5"})
        if verdict.status == 404:  # noqa: PLR2004 - HTTP's own number
            return refuse(404)
        return Response(status=verdict.status, text=f"{verdict.status}\n", headers=dict(verdict.headers))

    async def _admit(self, request: BaseRequest, path: str) -> Received:
        """Return what came; the cheapest question first, and nothing parsed."""
        peer = peer_of(request, self._trusted_proxies)
        if isinstance(request.protocol, Connection):
            request.protocol.speaks_for(peer)
        if request.method != "POST":
            raise _Refused(405, "bad_method", Allow="POST")
        if not self._buckets.take(peer, asyncio.get_running_loop().time()):
            # Not 429: some services give a mail up for good after any 4xx.
            raise _Refused(503, "limited", **{"Retry-After": "1"})
        if request.headers.get("Content-Encoding", "identity").strip().lower() != "identity":
            raise _Refused(415, "encoded")
        try:
            body = await read_body(request, self._kept_limits, self._room)
        except TimeoutError as error:
            raise _Refused(408, "slow") from error
        except BodyTooLarge as error:
            raise _Refused(413, "too_large") from error
        except NoRoom as error:
            raise _Refused(503, "limited", **{"Retry-After": "1"}) from error
        except BodyBroken as error:
            raise _Refused(400, "aborted") from error
        return Received(headers=single_headers(request), body=body, peer=peer, path=path)

    async def _receive(self, name: str, receiver: Receiver, received: Received) -> Verdict:
        try:
            async with asyncio.timeout(_RECEIVE_SECONDS):
                return await receiver.receive(received)
        except Exception as error:  # noqa: BLE001 - a stranger's bytes must never end in a 500
            _say_once(self._said, self._say, f"webhook {name}: {type(error).__name__}: {str(error)[:200]}")
            return Verdict(status=503, result="failed")


def _split(raw_path: str) -> tuple[str, str]:
    """Return the provider and what follows it in `/webhook/<provider>[/<more>]`; empty when it is neither."""
    found = _PATH.fullmatch(raw_path.partition("?")[0])
    return (found["name"], found["more"] or "") if found is not None else ("", "")


class _Refused(Exception):
    """A request that no receiver sees."""

    def __init__(self, status: int, result: str, **headers: str) -> None:
        super().__init__(result)
        self.status = status
        self.result = result
        self.headers = headers


def single_headers(request: BaseRequest) -> dict[str, str]:
    """Return the headers by lower-case name; one sent twice is left out."""
    # Of items, not of keys: a multidict may iterate over each key once.
    counts = Counter(name.lower() for name, _ in request.headers.items())
    return {name.lower(): value for name, value in request.headers.items() if counts[name.lower()] == 1}


def _say_once(said: Counter[str], say: Callable[[str], None], line: str) -> None:
    """Say a line the first time; what repeats has a metric."""
    if line not in said and len(said) < 100:  # noqa: PLR2004 - a stranger may vary the text
        said[line] += 1
        say(line)


def _is_this_machine(request: BaseRequest) -> bool:
    """Tell whether the peer is on loopback, or on the very address at which it reached us.

    Who listens on another address than loopback is asked at it from here too. Nobody else has it: the kernel
    takes no packet from outside that claims to come from one of its own addresses.
    """
    peer = request.remote or ""
    here = request.get_extra_info("sockname") or ("",)
    return is_loopback(peer) or (peer != "" and peer == here[0])


def _names_this_machine(host_header: str) -> bool:
    host = host_header.rpartition(":")[0] if host_header.rpartition(":")[2].isdigit() else host_header
    if host.lower() == "localhost":
        return True
    try:
        ipaddress.ip_address(host.strip("[]"))
    except ValueError:
        return False
    return True
