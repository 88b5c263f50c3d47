# SPDX-License-Identifier: Apache-2.0
"""Whether the daemon's pages answer, are the daemon's, and say that it is ready.

It asks for /metrics and /readyz only, and follows nobody elsewhere.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

import aiohttp

from spotwatch import __version__
from spotwatch.checks.finding import Finding, fail, ok, skip, warn
from spotwatch.checks.machine import Machine
from spotwatch.config_check import parse_listen

NAME = "http"
_SECONDS = 2.0
_MAX_PAGE_BYTES = 1024 * 1024
_MAX_REASONS = 20
_BUILD = re.compile(r'^spotwatch_build_info\{.*version="([^"]*)"', re.MULTILINE)
_ANY_ADDRESS = ("", "0.0.0.0", "::")  # noqa: S104 - compared, not bound
_PORT_MEND = "set http.listen to a free port, or end what listens there"


@dataclass(frozen=True, slots=True, kw_only=True)
class Pages:
    """What was answered."""

    metrics: str
    status: int
    """Of /readyz."""
    readiness: str


async def ask_pages(machine: Machine) -> list[Finding]:
    """Return what the daemon says of itself over HTTP."""
    return await ask_http(machine.settings.http.listen, is_running=await machine.daemon() is not None)


async def ask_http(listen: str, *, is_running: bool) -> list[Finding]:
    """Return whether the daemon answers on `listen`.

    Args:
        listen: as in the configuration.
        is_running: a daemon is seen on the runtime directory.
    """
    address = parse_listen(listen)
    if address is None or address.port == 0:
        return [skip(NAME, "http.listen is off" if address is None else "http.listen takes any port")]
    host = "127.0.0.1" if address.host in _ANY_ADDRESS else address.host
    base = f"http://[{host}]:{address.port}" if ":" in host else f"http://{host}:{address.port}"
    timeout = aiohttp.ClientTimeout(total=_SECONDS)
    try:
        async with aiohttp.ClientSession(timeout=timeout, trust_env=False) as session:
            _, metrics = await _page(session, f"{base}/metrics")
            status, readiness = await _page(session, f"{base}/readyz")
    except (aiohttp.ClientError, TimeoutError, OSError) as error:
        if not is_running and isinstance(error, aiohttp.ClientConnectorError):
            return [skip(NAME, f"nobody listens on {listen}, as no daemon runs")]
        said = f"{base} does not answer ({type(error).__name__}): no metrics, no health"
        return [warn(NAME, said, _PORT_MEND)]
    pages = Pages(metrics=metrics, status=status, readiness=readiness)
    return list(judge_pages(listen, pages, is_running=is_running))


def judge_pages(listen: str, pages: Pages, *, is_running: bool) -> Iterator[Finding]:
    """Yield whose pages these are, and whether that daemon is ready."""
    build = _BUILD.search(pages.metrics)
    if build is None:
        yield warn(NAME, f"something that is not spotwatch answers on {listen}", _PORT_MEND)
        return
    if not is_running:
        said = f"a daemon answers on {listen}, but none is seen on this runtime directory"
        mend = "run the check as the daemon's user (sudo), or give one of two daemons another http.listen"
        yield warn(NAME, said, mend)
        return
    if build[1] != __version__:
        said = f"the daemon is version {build[1]}, this is {__version__}"
        yield warn("daemon.version", said, "restart the daemon: systemctl restart spotwatch")
    if pages.status == 200:  # noqa: PLR2004 - HTTP's own number
        yield ok(NAME, f"{listen} serves metrics, and the daemon is ready")
        return
    for reason in (pages.readiness.strip().splitlines() or [f"HTTP {pages.status}"])[:_MAX_REASONS]:
        mend = "see the signals above, and journalctl -u spotwatch"
        yield fail("ready", f"the daemon is not ready: {reason}", mend)


async def _page(session: aiohttp.ClientSession, url: str) -> tuple[int, str]:
    body = bytearray()
    async with session.get(url, allow_redirects=False) as response:
        async for chunk in response.content.iter_any():
            body += chunk
            if len(body) > _MAX_PAGE_BYTES:
                break
        return response.status, body.decode(errors="replace")
