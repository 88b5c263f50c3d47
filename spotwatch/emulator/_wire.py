# SPDX-License-Identifier: Apache-2.0
"""How an answer leaves: as it is, or spoilt by one fault, down to a real RST.

It does not know which fault is in force, nor what the answer says.
"""

from __future__ import annotations

import asyncio
import socket
import struct
from dataclasses import replace
from datetime import datetime, timedelta
from email.utils import format_datetime
from http import HTTPStatus

from aiohttp import web

from spotwatch.emulator._base import Cloud, Reply
from spotwatch.emulator.faults import RETRY_AFTER_SECONDS, Fault

CAPTIVE_PATH = "/captive-portal"
"""Where the redirect fault points; a client that asks for it has followed one."""
HUGE_BYTES = 10_000_000
_CAPTIVE_PAGE = b"<html><head><title>Sign in</title></head><body>Welcome. TRUE. Please sign in.</body></html>"
# Linger on, for no time: close() then sends RST instead of FIN (socket(7), SO_LINGER).
_LINGER = struct.pack("ii", 1, 0)


def spoilt(fault: Fault, cloud: Cloud, base_url: str) -> Reply | None:
    """Return the whole answer that `fault` puts in place of the true one; None: it is no whole answer."""
    match fault.name:
        case "401" | "403" | "404" | "429" | "500" | "503":
            reply = _refusal(fault, cloud)
        case "empty":
            reply = Reply()
        case "html":
            reply = Reply(body=fault.body or _CAPTIVE_PAGE, content_type="text/html")
        case "10-mb":
            reply = Reply(body=b"0123456789abcdef" * (HUGE_BYTES // 16))
        case "wrong-type":
            reply = Reply(body=fault.body or b"42", content_type="application/json")
        case "redirect":
            reply = Reply(status=HTTPStatus.FOUND, headers={"Location": f"{base_url}{CAPTIVE_PATH}"})
        case _:
            return None
    return reply


def _refusal(fault: Fault, cloud: Cloud) -> Reply:
    """Return the cloud's own page for a status; 429 always and 503 on demand say when to come again."""
    if fault.name == "401":
        cloud.expire()
    page = cloud.error_page(int(fault.name))
    wait = fault.seconds
    if wait is None and fault.name == "429":
        wait = RETRY_AFTER_SECONDS
    if wait is None or fault.name not in ("429", "503"):
        return page
    return replace(page, headers={**page.headers, "Retry-After": f"{wait:g}"})


def captive_page() -> Reply:
    """Return what a client finds that has followed the redirect."""
    return Reply(body=_CAPTIVE_PAGE, content_type="text/html")


def drop(request: web.BaseRequest, *, reset: bool) -> None:
    """End the connection without an answer, with RST when `reset`, else with FIN."""
    transport = request.transport
    if transport is None:
        return
    if reset:
        transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _LINGER)
    transport.abort()


def whole(reply: Reply, *, now: datetime, skew_seconds: float, closes: bool) -> web.Response:
    """Return `reply` as it goes out at once."""
    response = web.Response(status=reply.status, body=reply.body, headers=_headers(reply, now, skew_seconds))
    if closes:
        response.force_close()
    return response


async def send_partly(
    request: web.BaseRequest, reply: Reply, *, now: datetime, byte_seconds: float | None
) -> web.StreamResponse:
    """Send the first half of the body and end the connection; with `byte_seconds`, all of it, slowly."""
    headers = _headers(reply, now, 0.0)
    response = web.StreamResponse(status=reply.status, headers=headers)
    response.content_length = max(len(reply.body), 1)
    response.force_close()
    await response.prepare(request)
    if byte_seconds is None:
        await response.write(reply.body[: len(reply.body) // 2])
        if request.transport is not None:
            request.transport.close()
        return response
    for byte in reply.body:
        await response.write(bytes([byte]))
        await asyncio.sleep(byte_seconds)
    return response


def _headers(reply: Reply, now: datetime, skew_seconds: float) -> dict[str, str]:
    date = format_datetime(now + timedelta(seconds=skew_seconds), usegmt=True)
    return {"Content-Type": reply.content_type, **reply.headers, "Date": date}
