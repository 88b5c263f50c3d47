# SPDX-License-Identifier: Apache-2.0
"""Where a mailbox is, and how its objects are read: a bucket, a directory, or any HTTPS address.

Each object is asked for only if it has changed (ETag), whole or not at all, at most 64 KiB, no redirect
followed. It believes nothing that it reads: signatures are others' business.
"""

from __future__ import annotations

import asyncio
import ipaddress
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol
from urllib.parse import quote, unquote, urlsplit

import aiohttp

from spotwatch.errors import ConfigError, Denied, HandshakeError, Malformed, ProviderError, Unavailable
from spotwatch.mail.mailbox_form import MAX_OBJECT_BYTES
from spotwatch.masking import mask_url
from spotwatch.safe_files import read_small_file

REQUEST_SECONDS = 10.0
_MEND_DENIED = (
    "check the credentials, the bucket's policy, and this machine's clock; what the environment says is read "
    "at the start only"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Fetched:
    """What became of one object since it was last read."""

    state: Literal["new", "same", "missing"]
    body: bytes = b""
    etag: str = ""
    """To be given back next time; empty: the store has none."""


class Reader(Protocol):
    """Reads a mailbox."""

    async def fetch(self, etags: Mapping[str, str]) -> Mapping[str, Fetched | ProviderError]:
        """Return what became of each key; never raises `ProviderError`.

        Args:
            etags: for each key what it was when last read; empty: not read yet.
        """

    async def close(self) -> None:
        """Close what is open; `fetch` opens it again."""


def open_reader(url: str, environ: Mapping[str, str]) -> Reader:
    """Return the reader of a mailbox; nothing is opened or imported before its first use.

    Args:
        url: `s3://BUCKET/PREFIX`, `spaces://BUCKET/PREFIX`, `file:///DIR` or `https://HOST/PATH` (`http://`
            on this machine only).
        environ: holds credentials and endpoints as for checkpoints: `AWS_*`, `SPACES_*`.

    Raises:
        ConfigError: it is none of these, or a variable is missing.
    """
    scheme = urlsplit(url).scheme
    if scheme == "file":
        return FileReader(file_root(url))
    if scheme in ("https", "http"):
        return HttpReader(_check_http(url))
    # Imported late: it belongs to buckets, and brings what they need.
    from spotwatch.mail.mailbox_bucket import BucketReader, bucket_of  # noqa: PLC0415

    return BucketReader(*bucket_of(url, environ))


def file_root(url: str) -> Path:
    """Return the directory of a `file:///DIR` mailbox.

    Raises:
        ConfigError: it names none.
    """
    parts = urlsplit(url)
    path = unquote(parts.path)
    if parts.netloc not in ("", "localhost") or not path.strip("/"):
        raise ConfigError(f"mailbox {url!r}: write file:///absolute/directory, with three slashes")
    return Path(path)


class FileReader:
    """A mailbox in a directory, for tests and for shared file systems.

    Args:
        root: may be missing: then there are no letters.
    """

    def __init__(self, root: Path) -> None:
        self._root = root

    async def fetch(self, etags: Mapping[str, str]) -> Mapping[str, Fetched | ProviderError]:
        """Return what became of each file."""
        return {key: await asyncio.to_thread(self._read, key, etag) for key, etag in etags.items()}

    async def close(self) -> None:
        """Do nothing: nothing stays open."""

    def _read(self, key: str, etag: str) -> Fetched | ProviderError:
        path = self._root / key
        try:
            facts = path.lstat()
        except (FileNotFoundError, NotADirectoryError):
            return Fetched(state="missing")
        except OSError as error:
            return Unavailable(f"cannot read {path}: {error.strerror}")
        now = f"{facts.st_ino}-{facts.st_mtime_ns}-{facts.st_size}"
        if now == etag:
            return Fetched(state="same", etag=etag)
        try:
            body = read_small_file(path, limit=MAX_OBJECT_BYTES)
        except HandshakeError as error:
            return Malformed(str(error))
        return Fetched(state="missing") if body is None else Fetched(state="new", body=body, etag=now)


class HttpReader:
    """A mailbox behind any web server: a public bucket, a CDN, nginx.

    Args:
        url: of its root, without a slash at the end.
        request_seconds: for one object, connecting included.
    """

    def __init__(self, url: str, *, request_seconds: float = REQUEST_SECONDS) -> None:
        self._url = url
        self._request_seconds = request_seconds
        self._session: aiohttp.ClientSession | None = None

    async def fetch(self, etags: Mapping[str, str]) -> Mapping[str, Fetched | ProviderError]:
        """Return what became of each object; what does not answer is not asked for the next one."""
        results: dict[str, Fetched | ProviderError] = {}
        down: Unavailable | None = None
        for key, etag in etags.items():
            if down is not None:
                results[key] = down
                continue
            try:
                results[key] = await self._get(key, etag)
            except Unavailable as error:
                results[key] = down = error
            except ProviderError as error:
                results[key] = error
        return results

    async def close(self) -> None:
        """Close all connections."""
        if self._session is not None:
            await self._session.close()
            self._session = None

    async def _get(self, key: str, etag: str) -> Fetched:
        if self._session is None:
            self._session = aiohttp.ClientSession(
                trust_env=False,
                auto_decompress=False,
                cookie_jar=aiohttp.DummyCookieJar(),
                headers={"User-Agent": "spotwatch", "Accept-Encoding": "identity"},
                timeout=aiohttp.ClientTimeout(total=None),  # asyncio.timeout counts it all
            )
        what = f"GET {key}"
        headers = {"If-None-Match": etag} if etag else {}
        try:
            async with (
                asyncio.timeout(self._request_seconds),
                self._session.get(
                    f"{self._url}/{quote(key)}", headers=headers, allow_redirects=False
                ) as answer,
            ):
                status = answer.status
                if status == 304 and etag:  # noqa: PLR2004 - HTTP's own number
                    return Fetched(state="same", etag=etag)
                if status in (404, 410):
                    return Fetched(state="missing")
                if status != 200:  # noqa: PLR2004 - HTTP's own number
                    raise refusal(what, status)
                body = await self._read_capped(answer.content, what)
                return Fetched(state="new", body=body, etag=answer.headers.get("ETag", "")[:256])
        except TimeoutError as error:
            raise Unavailable(f"{what}: no answer within {self._request_seconds:g} s") from error
        except aiohttp.ClientResponseError as error:
            raise Malformed(f"{what}: the answer is not HTTP") from error
        except (aiohttp.ClientError, OSError) as error:
            raise Unavailable(
                f"{what}: {type(error).__name__}: {str(error).partition(chr(10))[0][:120]}"
            ) from error

    async def _read_capped(self, content: aiohttp.StreamReader, what: str) -> bytes:
        body = bytearray()
        while chunk := await content.read(16 * 1024):
            body += chunk
            if len(body) > MAX_OBJECT_BYTES:
                raise Malformed(f"{what}: more than {MAX_OBJECT_BYTES} bytes")
        return bytes(body)


def refusal(what: str, status: int) -> ProviderError:
    """Return the error that a refused request for an object is."""
    if status in (401, 403):
        return Denied(f"{what}: HTTP {status}", mend=_MEND_DENIED)
    if status in (408, 429) or 500 <= status < 600:  # noqa: PLR2004 - HTTP's own numbers
        return Unavailable(f"{what}: HTTP {status}")
    if 300 <= status < 400:  # noqa: PLR2004 - HTTP's own numbers
        return Malformed(f"{what}: HTTP {status}, a redirect, which is never followed")
    return Malformed(f"{what}: unexpected HTTP {status}")


def _check_http(url: str) -> str:
    parts = urlsplit(url)
    try:
        _ = parts.port
    except ValueError as error:
        raise ConfigError(f"mailbox {mask_url(url)}: {error}; write https://HOST:PORT/PATH") from error
    if not parts.hostname or parts.query or parts.fragment or "@" in parts.netloc:
        raise ConfigError(f"mailbox {mask_url(url)}: write https://HOST/PATH, nothing after it")
    if parts.scheme == "http" and not _is_here(parts.hostname):
        raise ConfigError(f"mailbox {mask_url(url)}: use https://; who listens learns what is taken when")
    return url.rstrip("/")


def _is_here(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
