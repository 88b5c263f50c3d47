# SPDX-License-Identifier: Apache-2.0
"""Whether the daemon's pages answer, are the daemon's, and say that it is ready.

It asks for /metrics, /healthz, /readyz and /status only, and follows nobody elsewhere.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import aiohttp

from spotwatch import __version__
from spotwatch.checks.finding import Finding, Result, fail, ok, skip, warn
from spotwatch.checks.limits import in_thread
from spotwatch.checks.machine import Machine
from spotwatch.checks.places import SUDO
from spotwatch.checks.sockets import holds_port
from spotwatch.config_check import parse_listen
from spotwatch.config_print import digest_settings

NAME = "http"
_SECONDS = 4.0
"""For all pages together. The daemon answers in milliseconds, and one under load is not to be called hung."""
_MAX_PAGE_BYTES = 1024 * 1024
_MAX_REASONS = 20
_BUILD = re.compile(r'^spotwatch_build_info\{.*version="([^"]*)"', re.MULTILINE)
_ANY_ADDRESS = ("", "0.0.0.0", "::")  # noqa: S104 - compared, not bound
_PORT_MEND = "set http.listen to a free port, or end what listens there"
_HANGS = "daemon.hangs"
_RESTART = "restart it: systemctl restart spotwatch, or as it was started; what is in force is kept"


@dataclass(frozen=True, slots=True, kw_only=True)
class Pages:
    """What was answered."""

    metrics: str
    status: int
    """Of /readyz."""
    readiness: str
    health: int
    """The status of /healthz."""


async def ask_pages(machine: Machine) -> list[Finding]:
    """Return what the daemon says of itself over HTTP."""
    listen = machine.settings.http.listen
    pid = await machine.daemon()
    is_running = pid is not None
    findings = await ask_http(listen, pid=pid, is_strange=machine.is_strange)
    if machine.is_strange:
        return findings  # and has not the daemon's settings
    if is_running and not any(finding.name in (NAME, _HANGS) and finding.mend for finding in findings):
        theirs, ours = await _ask_settings(listen), digest_settings(machine.settings)
        findings += judge_settings(theirs, ours, has_file=machine.loaded.path is not None)
    return findings


def judge_settings(
    theirs: Mapping[str, str], ours: Mapping[str, str], *, has_file: bool
) -> Iterator[Finding]:
    """Yield whether the daemon runs with the settings that are judged here.

    Args:
        theirs: digests of what the daemon runs with; empty: it does not say.
        ours: of the configuration as it is now.
        has_file: there is a file that may have been edited since; else it is rather a daemon that was started
            by hand, with options that were not given here.
    """
    other = [name for name, digest in ours.items() if theirs.get(name, digest) != digest]
    if other:
        said = f"the daemon runs with other settings than these: {', '.join(other)}"
        mend = "restart the daemon: systemctl restart spotwatch; or ask with the options and variables it has"
        yield (fail if has_file else warn)("daemon.settings", said, mend)


async def _ask_settings(listen: str) -> Mapping[str, str]:
    base = _base(listen)
    if base is None:
        return {}
    try:
        async with aiohttp.ClientSession(
            timeout=aiohttp.ClientTimeout(total=_SECONDS), trust_env=False
        ) as session:
            status, page = await _page(session, f"{base}/status")
        settings = json.loads(page).get("settings") if status == 200 else None  # noqa: PLR2004 - HTTP's own
    except (aiohttp.ClientError, TimeoutError, OSError, ValueError, RecursionError, AttributeError):
        return {}  # that it does not answer is said by `ask_http`
    return settings if isinstance(settings, dict) else {}


async def ask_http(listen: str, *, pid: int | None, is_strange: bool = False) -> list[Finding]:
    """Return whether the daemon answers on `listen`.

    Args:
        listen: as in the configuration.
        pid: of the daemon that is seen on the runtime directory (0: unreadable); None: none is seen.
        is_strange: the daemon is another user's, as may be what sets `http.listen`.
    """
    base = _base(listen)
    if base is None:
        return [skip(NAME, "http.listen takes any port" if parse_listen(listen) else "http.listen is off")]
    findings = await _ask_pages(listen, base, pid, is_strange=is_strange)
    return [_doubt(finding) if is_strange and finding.name == NAME else finding for finding in findings]


def _doubt(finding: Finding) -> Finding:
    if finding.result is Result.OK:
        return finding
    return skip(NAME, f"{finding.found}; or http.listen is another than can be read from here", SUDO)


async def _ask_pages(listen: str, base: str, pid: int | None, *, is_strange: bool) -> list[Finding]:
    timeout = aiohttp.ClientTimeout(total=_SECONDS)
    try:
        async with (
            asyncio.timeout(_SECONDS),
            aiohttp.ClientSession(timeout=timeout, trust_env=False) as session,
        ):
            _, metrics = await _page(session, f"{base}/metrics")
            health, _ = await _page(session, f"{base}/healthz")
            status, readiness = await _page(session, f"{base}/readyz")
    except TimeoutError:
        return [await in_thread(judge_silence, listen, pid)]
    except aiohttp.ClientConnectorError:
        if pid is None:
            return [skip(NAME, f"nobody listens on {listen}, and no daemon is seen")]
        mend = f"if http.listen was edited: systemctl restart spotwatch; else {_PORT_MEND}"
        return [warn(NAME, f"nobody listens on {listen}, and a daemon runs: no metrics, no health", mend)]
    except (aiohttp.ClientError, OSError) as error:
        said = f"{listen} does not answer as spotwatch does ({type(error).__name__}): no metrics, no health"
        return [warn(NAME, said, _PORT_MEND)]
    if _BUILD.search(metrics) and await in_thread(_holds, listen, pid) is False:
        said = f"another daemon answers on {listen}, not pid {pid}: no metrics, no health of that one"
        return [warn(NAME, said, "give one of the two another http.listen")]
    pages = Pages(metrics=metrics, status=status, readiness=readiness, health=health)
    return list(judge_pages(listen, pages, is_running=pid is not None or is_strange))


def _holds(listen: str, pid: int | None) -> bool | None:
    address = parse_listen(listen)
    return None if pid is None or address is None else holds_port(pid, address.port)


def judge_silence(listen: str, pid: int | None) -> Finding:
    """Return what it means that `listen` takes connections and answers none.

    Args:
        listen: as in the configuration.
        pid: as for `ask_http`.
    """
    said = f"{listen} does not answer within {_SECONDS:g} s"
    holds = _holds(listen, pid)
    if pid is None or holds is False:
        return warn(NAME, f"{said}, and is no daemon's that is seen: no metrics, no health", _PORT_MEND)
    if holds:
        return fail(
            _HANGS, f"{said}, and pid {pid} listens there: it hangs, a notice would be missed", _RESTART
        )
    return fail(
        _HANGS,
        f"{said}, and a daemon runs: it hangs, and a notice would be missed, or something else has its port",
        f"{_RESTART}; if the line stays, {_PORT_MEND}",
    )


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
    if pages.health == 503:  # noqa: PLR2004 - HTTP's own number
        yield fail(_HANGS, "the daemon says itself that it is stuck: a notice would be missed", _RESTART)
        return
    if pages.status == 200:  # noqa: PLR2004 - HTTP's own number
        yield ok(NAME, f"{listen} serves metrics, and the daemon is ready")
        return
    for reason in (pages.readiness.strip().splitlines() or [f"HTTP {pages.status}"])[:_MAX_REASONS]:
        mend = "see the signals above, and journalctl -u spotwatch"
        yield fail("ready", f"the daemon is not ready: {reason}", mend)


def _base(listen: str) -> str | None:
    """Return where the pages are; None: nowhere, or nobody knows."""
    address = parse_listen(listen)
    if address is None or address.port == 0:
        return None
    host = "127.0.0.1" if address.host in _ANY_ADDRESS else address.host
    return f"http://[{host}]:{address.port}" if ":" in host else f"http://{host}:{address.port}"


async def _page(session: aiohttp.ClientSession, url: str) -> tuple[int, str]:
    body = bytearray()
    async with session.get(url, allow_redirects=False) as response:
        async for chunk in response.content.iter_any():
            body += chunk
            if len(body) > _MAX_PAGE_BYTES:
                break
        return response.status, body.decode(errors="replace")
