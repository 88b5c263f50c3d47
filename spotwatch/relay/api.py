# SPDX-License-Identifier: Apache-2.0
"""The account's Droplets, as DigitalOcean's API lists them.

`GET /v2/droplets?per_page=200`, `links.pages.next` for the next page, `networks.{v4,v6}[].ip_address` (API
reference, "List All Droplets", read 2026-11-29). The token need only read Droplets (`droplet:read`). It goes
to the configured host alone, and no redirect is followed. It keeps nothing.
"""

from __future__ import annotations

import asyncio
import ipaddress
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any
from urllib.parse import urlsplit

import aiohttp

from spotwatch.errors import Denied, Malformed, ProviderError, Unavailable
from spotwatch.mail.model import Droplet
from spotwatch.untrusted import printable, read_object

MAX_PAGES = 50
MAX_PAGE_BYTES = 8 * 1024 * 1024
"""A page of 200 Droplets, each with its image, size and region, has about 1 MB."""

_PAGE_SECONDS = 15.0
_MAX_ID = 2**53
_FIRST = "/v2/droplets?per_page=200"
_MEND = (
    "make a token that may read Droplets, and put it into relay.token_file: it is read each time; but what "
    "systemd hands over with LoadCredential= only at a start (systemctl restart spotwatch-relay)"
)


async def list_droplets(api_url: str, token: str) -> tuple[Droplet, ...]:
    """Return all Droplets of the account that `token` belongs to.

    Raises:
        ProviderError: the API did not give all of them; half a list could make a name look unique.
    """
    base = api_url.rstrip("/")
    url, rows = f"{base}{_FIRST}", []
    async with aiohttp.ClientSession(
        trust_env=False,
        cookie_jar=aiohttp.DummyCookieJar(),
        headers={"User-Agent": "spotwatch", "Authorization": f"Bearer {token}"},
        timeout=aiohttp.ClientTimeout(total=None),  # asyncio.timeout counts it all
    ) as session:
        for _ in range(MAX_PAGES):
            page = await asyncio.to_thread(read_object, await _get(session, url))
            rows += _droplet_rows(page)
            following = _next(page)
            if not following:
                # Half a second at 3,000 Droplets.
                return await asyncio.to_thread(tell_apart, rows)
            if _origin(following) != _origin(base):
                raise Malformed(f"the next page is at another host: {printable(following, 100)}")
            url = following
    raise Malformed(f"more than {MAX_PAGES} pages of Droplets")


def tell_apart(rows: Iterable[Mapping[str, Any]]) -> tuple[Droplet, ...]:
    """Return the Droplets in `rows`; only a name or address that no other one has is a Droplet's own.

    Raises:
        Malformed: a row is none.
    """
    read = [_read(row) for row in rows]
    names = Counter(name.casefold() for _, name, _ in read)
    addresses = Counter(address for _, _, some in read for address in some)
    return tuple(
        Droplet(
            droplet_id=droplet_id,
            names=frozenset({name.casefold()} if name and names[name.casefold()] == 1 else ()),
            hostname=name,
            addresses=frozenset(one for one in some if addresses[one] == 1),
        )
        for droplet_id, name, some in read
    )


def _read(row: Mapping[str, Any]) -> tuple[int, str, frozenset[str]]:
    droplet_id, name = row.get("id"), row.get("name")
    if not isinstance(droplet_id, int) or isinstance(droplet_id, bool) or not 1 <= droplet_id <= _MAX_ID:
        raise Malformed(f"a Droplet without a number: {printable(str(droplet_id)[:40], 40)!r}")
    return droplet_id, name.strip() if isinstance(name, str) else "", frozenset(_addresses(row))


def _addresses(row: Mapping[str, Any]) -> Iterable[str]:
    networks = row.get("networks")
    for version in ("v4", "v6"):
        entries = networks.get(version) if isinstance(networks, dict) else None
        for entry in entries if isinstance(entries, list) else ():
            text = entry.get("ip_address") if isinstance(entry, dict) else None
            try:
                yield str(ipaddress.ip_address(text if isinstance(text, str) else ""))
            except ValueError:
                continue


def _droplet_rows(page: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    rows = page.get("droplets")
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise Malformed("no list of Droplets in the answer")
    return rows


def _next(page: Mapping[str, Any]) -> str:
    links = page.get("links")
    pages = links.get("pages") if isinstance(links, dict) else None
    following = pages.get("next") if isinstance(pages, dict) else None
    return following if isinstance(following, str) else ""


def _origin(url: str) -> tuple[str, str | None, int | None]:
    try:
        parts = urlsplit(url)
        port = parts.port or {"https": 443, "http": 80}.get(parts.scheme)
    except ValueError:
        return "", None, None
    # A user name could make another host look like ours.
    return parts.scheme, None if "@" in parts.netloc else parts.hostname, port


async def _get(session: aiohttp.ClientSession, url: str) -> bytes:
    what = "GET /v2/droplets"
    try:
        async with asyncio.timeout(_PAGE_SECONDS), session.get(url, allow_redirects=False) as answer:
            if answer.status != 200:  # noqa: PLR2004 - HTTP's own number
                raise _refusal(what, answer)
            body = bytearray()
            async for chunk in answer.content.iter_chunked(64 * 1024):
                body += chunk
                if len(body) > MAX_PAGE_BYTES:
                    raise Malformed(f"{what}: more than {MAX_PAGE_BYTES} bytes")
            return bytes(body)
    except TimeoutError as error:
        raise Unavailable(f"{what}: no answer within {_PAGE_SECONDS:g} s") from error
    except aiohttp.ClientResponseError as error:
        raise Malformed(f"{what}: the answer is not HTTP") from error
    except (aiohttp.ClientError, OSError) as error:
        raise Unavailable(f"{what}: {type(error).__name__}") from error


def _refusal(what: str, answer: aiohttp.ClientResponse) -> ProviderError:
    status = answer.status
    if status in (401, 403):
        return Denied(f"{what}: HTTP {status}", mend=_MEND)
    if status in (408, 429) or status >= 500:  # noqa: PLR2004 - HTTP's own number
        return Unavailable(f"{what}: HTTP {status}")
    return Malformed(f"{what}: unexpected HTTP {status}")
