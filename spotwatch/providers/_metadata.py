# SPDX-License-Identifier: Apache-2.0
"""The one HTTP client for link-local metadata services: short, capped, direct, and typed in its failures.

Never a proxy (the environment is not read), never a redirect (a captive page would be believed), never a
compressed body (a bomb would be unpacked), never a cookie, never an error page read, and never more than
64 KiB. Whatever goes wrong is one of three errors. It does not know any cloud's paths.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import aiohttp

from spotwatch.errors import Denied, Malformed, ProviderError, Unavailable

MAX_BODY_BYTES = 64 * 1024
_USER_AGENT = "spotwatch"
_DMI = Path("/sys/class/dmi/id")


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """A complete answer with a status that the caller asked for."""

    status: int
    headers: Mapping[str, str]
    """Names in lower case; of a header sent twice the last one."""
    body: bytes
    """Empty unless the status is 2xx: an error page is never read, and never delays the answer."""

    @property
    def server_at(self) -> datetime | None:
        """Return the server's Date header, aware UTC; None when missing or unreadable."""
        try:
            moment = parsedate_to_datetime(self.headers["date"])
            return moment.astimezone(UTC) if moment.tzinfo is not None else None
        except (KeyError, ValueError, TypeError, IndexError, OverflowError):
            return None

    def text(self) -> str:
        """Return the body as stripped text.

        Raises:
            Malformed: it is not UTF-8.
        """
        try:
            return self.body.decode("utf-8").strip()
        except UnicodeDecodeError as error:
            raise Malformed("body is not UTF-8", body=self.body) from error

    def json(self) -> Any:
        """Return the body as JSON.

        Raises:
            Malformed: it is not JSON.
        """
        try:
            return json.loads(self.body)
        except (ValueError, RecursionError) as error:
            raise Malformed(f"body is not JSON: {str(error)[:80]}", body=self.body) from error


class MetadataClient:
    """Requests to one metadata service, each with its own total time limit.

    Args:
        base_url: scheme, host and port, without a trailing slash.
        timeout_seconds: for a whole request, connecting included, unless a call says otherwise.
    """

    def __init__(self, base_url: str, *, timeout_seconds: float) -> None:
        self.base_url = base_url.rstrip("/")
        self.timeout_seconds = timeout_seconds
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Self:
        """Open the session."""
        self._session = aiohttp.ClientSession(
            trust_env=False,
            auto_decompress=False,
            cookie_jar=aiohttp.DummyCookieJar(),
            headers={"User-Agent": _USER_AGENT, "Accept-Encoding": "identity"},
            skip_auto_headers=("Content-Type",),
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=None),  # asyncio.timeout counts it all
        )
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close all connections."""
        if self._session is not None:
            await self._session.close()
            self._session = None

    async def request(
        self,
        method: str,
        path: str,
        *,
        headers: Mapping[str, str] | None = None,
        params: Mapping[str, str] | None = None,
        body: bytes | None = None,
        timeout_seconds: float | None = None,
        accept: tuple[int, ...] = (200,),
    ) -> Reply:
        """Send one request and return its whole answer.

        Args:
            method: GET, PUT or POST.
            path: begins with a slash.
            headers: these, beside Host, Accept, Accept-Encoding, User-Agent and Content-Length.
            params: the query.
            body: for PUT and POST.
            timeout_seconds: from now to the last byte, connecting included; None: the client's own.
            accept: statuses that the caller wants to see; every other one is an error.

        Raises:
            Unavailable: no answer in time (its cause is a TimeoutError then), refused, reset, truncated,
                408, 429, 5xx.
            Denied: 401 or 403.
            Malformed: a redirect, another status, no HTTP at all, a compressed body, or one over 64 KiB.
        """
        if self._session is None:
            raise RuntimeError("MetadataClient is used outside its context")
        limit = self.timeout_seconds if timeout_seconds is None else timeout_seconds
        what = f"{method} {path}"
        try:
            async with (
                asyncio.timeout(limit),
                self._session.request(
                    method,
                    f"{self.base_url}{path}",
                    headers=headers,
                    params=params,
                    data=body,
                    allow_redirects=False,
                ) as response,
            ):
                if response.status not in accept:
                    raise _refusal(what, response.status, response.headers)
                is_success = 200 <= response.status < 300  # noqa: PLR2004 - HTTP's own numbers
                content = await _read_capped(response, what) if is_success else b""
                return Reply(
                    status=response.status,
                    headers={k.lower(): v for k, v in response.headers.items()},
                    body=content,
                )
        except TimeoutError as error:
            raise Unavailable(f"{what}: no answer within {limit:.3g} s") from error
        except aiohttp.ClientResponseError as error:
            # What came is not HTTP. The parser's text quotes raw bytes over several lines, so it is left out.
            raise Malformed(f"{what}: the answer is not HTTP: {_one_line(error.message)}") from error
        except aiohttp.ClientError as error:
            raise Unavailable(f"{what}: {type(error).__name__}: {_one_line(str(error))}") from error
        except OSError as error:
            raise Unavailable(f"{what}: {error.strerror or error}") from error

    async def get(self, path: str, **options: Any) -> Reply:
        """Send a GET; see `request`."""
        return await self.request("GET", path, **options)


async def _read_capped(response: aiohttp.ClientResponse, what: str) -> bytes:
    encoding = response.headers.get("Content-Encoding", "identity").strip().lower()
    if encoding not in ("", "identity"):
        raise Malformed(f"{what}: body is encoded as {encoding[:40]!r}, which was not asked for")
    content = bytearray()
    async for chunk in response.content.iter_chunked(16 * 1024):
        content += chunk
        if len(content) > MAX_BODY_BYTES:
            raise Malformed(f"{what}: body over {MAX_BODY_BYTES} bytes", body=bytes(content[:MAX_BODY_BYTES]))
    return bytes(content)


def _refusal(what: str, status: int, headers: Mapping[str, str]) -> ProviderError:
    if status in (401, 403):
        return Denied(f"{what}: HTTP {status}")
    if status in (408, 429) or 500 <= status < 600:  # noqa: PLR2004 - HTTP's own numbers
        return Unavailable(f"{what}: HTTP {status}", retry_after_seconds=_retry_after(status, headers))
    if 300 <= status < 400:  # noqa: PLR2004 - HTTP's own numbers
        return Malformed(f"{what}: HTTP {status}, a redirect, which is never followed")
    return Malformed(f"{what}: unexpected HTTP {status}")


def _one_line(text: str) -> str:
    """Return the first line of an error's text, short enough for a log."""
    return text.partition("\n")[0].strip()[:120]


def _retry_after(status: int, headers: Mapping[str, str]) -> float | None:
    """Return Retry-After of 429 and 503 in seconds; an HTTP date or nonsense counts as none."""
    text = headers.get("Retry-After", "")
    if status not in (429, 503) or not text.isascii() or not text.isdigit():
        return None
    return float(text[:6])


def read_dmi(name: str) -> str:
    """Return one DMI text of this machine, such as `sys_vendor`; empty when there is none."""
    try:
        return (_DMI / name).read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""
