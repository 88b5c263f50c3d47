# SPDX-License-Identifier: Apache-2.0
"""How EC2's instance metadata service (IMDS) is spoken to: its session token, and one clean retry.

It does not know where the service is, what its paths mean, nor when they are to be asked.

Source: Amazon EC2 user guide, "Use the Instance Metadata Service to access instance metadata".
"""

from __future__ import annotations

import asyncio
import re
from dataclasses import dataclass
from http import HTTPStatus

from spotwatch.clock import Clock
from spotwatch.errors import Denied, Malformed, NotHere, ProviderError, Unavailable
from spotwatch.providers._metadata import MetadataClient, Reply

TOKEN_PATH = "/latest/api/token"  # noqa: S105 - a path, no secret
MAX_TTL_SECONDS = 21600

_TOKEN_HEADER = "x-aws-ec2-metadata-token"  # noqa: S105 - a header's name, no secret
_TTL_HEADER = "x-aws-ec2-metadata-token-ttl-seconds"
_TOKEN = re.compile(r"[!-;=?-z|~]{1,2048}")  # printable, and no markup or JSON that a captive page might send
_RENEW_EARLY_SECONDS = 60.0  # a token used in the last moment of its life was refused (aws-sdk-java-v2 #5764)
_V1_SECONDS = 300.0  # how long to go without a token before asking for one again

_MEND_HOPS = (
    "the answer to the token request dies after one hop, which a container's network costs; allow two:"
    " aws ec2 modify-instance-metadata-options --instance-id ID --http-put-response-hop-limit 2"
    " (or run on the host's network)"
)
_MEND_OFF = (
    "instance metadata is switched off for this instance; switch it on:"
    " aws ec2 modify-instance-metadata-options --instance-id ID --http-endpoint enabled"
)
_MEND_V1 = (
    "this service offers no session tokens (IMDSv2); if it is EC2's all the same, set"
    " provider.aws.allow_imdsv1 = true"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Session:
    """A token and its times on the boot clock; an empty one stands for the old way without any."""

    token: str
    renew_at: float
    expires_at: float


class Imds:
    """Requests to IMDS with a session token that is cached, renewed early and replaced when refused.

    Args:
        client: an open client on the endpoint.
        clock: for the token's age, which suspension counts towards.
        ttl_seconds: asked for each token, 1 to 21600.
        allow_v1: go on without a token where none is to be had.
        is_container: whether silence may mean the hop limit.
    """

    def __init__(
        self,
        client: MetadataClient,
        clock: Clock,
        *,
        ttl_seconds: int = MAX_TTL_SECONDS,
        allow_v1: bool = False,
        is_container: bool = False,
    ) -> None:
        self._client = client
        self._clock = clock
        self._ttl_seconds = ttl_seconds
        self._allow_v1 = allow_v1
        self._is_container = is_container
        self._lock = asyncio.Lock()
        self._session: _Session | None = None

    async def ready(self, *, until: float) -> None:
        """Have a token, so that requests made together need not each wait for one.

        Args:
            until: on the event loop's clock.

        Raises:
            ProviderError: there is none to be had.
        """
        await self._token(until)

    async def get(self, path: str, *, until: float) -> Reply:
        """Return the answer to a GET, 200 or 404; a token that is refused is replaced once.

        Args:
            path: begins with a slash.
            until: on the event loop's clock; tokens and retry included.

        Raises:
            ProviderError: as `MetadataClient.request`.
        """
        session = await self._token(until)
        reply = await self._get(path, session, until, accept=(200, 401, 404))
        if reply.status != HTTPStatus.UNAUTHORIZED:
            return reply
        if self._session is session:  # else another request has replaced it meanwhile
            self._session = None
        return await self._get(path, await self._token(until), until, accept=(200, 404))

    async def _get(self, path: str, session: _Session, until: float, *, accept: tuple[int, ...]) -> Reply:
        headers = {_TOKEN_HEADER: session.token} if session.token else {}
        return await self._client.get(path, headers=headers, timeout_seconds=_left(until), accept=accept)

    async def _token(self, until: float) -> _Session:
        async with self._lock:
            now, old = self._clock.boot(), self._session
            if old is not None and now < old.renew_at:
                return old
            is_spare = old is not None and now < old.expires_at
            # Where there is another way, a request that hangs may not eat the time for it.
            share = 0.5 if is_spare or self._allow_v1 else 1.0
            try:
                self._session = await self._put(_left(until) * share)
            except ProviderError:
                if old is not None and is_spare:
                    return old
                if not self._allow_v1:
                    raise
                self._session = _Session(token="", renew_at=now + _V1_SECONDS, expires_at=now + _V1_SECONDS)
            return self._session

    async def _put(self, limit_seconds: float) -> _Session:
        asked_at = self._clock.boot()
        try:
            token, ttl = await request_token(self._client, self._ttl_seconds, timeout_seconds=limit_seconds)
        except Unavailable as error:
            if self._is_container and isinstance(error.__cause__, TimeoutError):
                raise Unavailable(str(error), mend=_MEND_HOPS) from error
            raise
        renew_after = max(0.75 * ttl, ttl - _RENEW_EARLY_SECONDS)
        return _Session(token=token, renew_at=asked_at + renew_after, expires_at=asked_at + ttl)


async def request_token(
    client: MetadataClient, ttl_seconds: int, *, timeout_seconds: float
) -> tuple[str, int]:
    """Return a new token and its life in seconds.

    Raises:
        NotHere: the service knows no tokens.
        Denied: it is switched off.
        ProviderError: as `MetadataClient.request`.
    """
    reply = await client.request(
        "PUT",
        TOKEN_PATH,
        headers={_TTL_HEADER: str(ttl_seconds)},
        timeout_seconds=timeout_seconds,
        accept=(200, 403, 404, 405),
    )
    if reply.status == HTTPStatus.FORBIDDEN:
        raise Denied(f"PUT {TOKEN_PATH}: HTTP 403", mend=_MEND_OFF)
    if reply.status != HTTPStatus.OK:
        raise NotHere(f"PUT {TOKEN_PATH}: HTTP {reply.status}", mend=_MEND_V1)
    token = reply.text()
    if _TOKEN.fullmatch(token) is None:
        raise Malformed(f"PUT {TOKEN_PATH}: no token in {len(reply.body)} bytes", body=reply.body)
    given = reply.headers.get(_TTL_HEADER, "")
    life = int(given) if given.isascii() and given.isdigit() and len(given) < 6 else ttl_seconds  # noqa: PLR2004 - at most 21600
    return token, max(1, min(life, MAX_TTL_SECONDS))


def _left(until: float) -> float:
    return max(0.0, until - asyncio.get_running_loop().time())
