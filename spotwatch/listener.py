# SPDX-License-Identifier: Apache-2.0
"""Where a listener is bound, and what happens when it cannot be: it is said, and tried again.

It does not know what is asked or answered.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
from collections.abc import Awaitable, Callable

from aiohttp import web

from spotwatch.errors import ConfigError
from spotwatch.webhook_guard import Limits, Server

RETRY_SECONDS = 30.0


def parse_listen(text: str, *, key: str = "listen") -> tuple[str | None, int]:
    """Return host and port of `host:port`, `[::1]:port` or `:port` (None: every address of this machine).

    Args:
        text: what the user wrote; port 0 lets the system choose.
        key: named in the message.

    Raises:
        ConfigError: it is not of this form.
    """
    wanted = f"{key} = {text[:80]!r}: write host:port, [ipv6]:port or :port, port 0 to 65535"
    host, colon, port = text.rpartition(":")
    if not colon or not port.isascii() or not port.isdigit() or len(port) > 5 or int(port) > 65535:  # noqa: PLR2004 - TCP's own limit
        raise ConfigError(wanted)
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
        try:
            ipaddress.IPv6Address(host)
        except ValueError as error:
            raise ConfigError(wanted) from error
    elif ":" in host or any(c.isspace() or c in "[]/" for c in host):
        raise ConfigError(wanted)
    return host or None, int(port)


class Listener:
    """A guarded HTTP listener that is bound sooner or later, and never raises because it is not.

    Args:
        listen: `host:port`; empty: there is none, and nothing is ever bound.
        handler: answers a request.
        say: takes one line for the log, when binding fails and when it succeeds after that.
        limits: what a peer may cost.
        retry_seconds: between two tries to bind.

    Raises:
        ConfigError: `listen` is not of a known form.
    """

    def __init__(
        self,
        listen: str,
        handler: Callable[[web.BaseRequest], Awaitable[web.StreamResponse]],
        *,
        say: Callable[[str], None],
        limits: Limits,
        retry_seconds: float = RETRY_SECONDS,
    ) -> None:
        self._listen = listen
        self._address = parse_listen(listen) if listen else None
        self._handler = handler
        self._say = say
        self._limits = limits
        self._retry_seconds = retry_seconds
        self._server: Server | None = None
        self._sockets: asyncio.Server | None = None
        self._retry: asyncio.Task[None] | None = None
        self.problem = ""
        """Why it is not bound; empty when it is, or when none is wanted."""

    @property
    def is_bound(self) -> bool:
        """Tell whether peers can connect."""
        return self._sockets is not None

    @property
    def port(self) -> int:
        """Return the port that is bound; 0 while none is."""
        return self._sockets.sockets[0].getsockname()[1] if self._sockets is not None else 0

    async def start(self) -> None:
        """Bind; if that fails, say so and go on trying in the background."""
        if self._address is None or self._sockets is not None or self._retry is not None:
            return
        if not await self._bind(*self._address):
            self._retry = asyncio.create_task(self._bind_later(*self._address), name="listener-retry")

    async def close(self) -> None:
        """Stop listening, let answers under way finish within a second, cut off the rest."""
        if self._retry is not None:
            self._retry.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._retry
            self._retry = None
        if self._sockets is not None:
            self._sockets.close()
        if self._server is not None:
            await self._server.shutdown(1.0)
            self._server = None
        if self._sockets is not None:
            await self._sockets.wait_closed()
            self._sockets = None

    async def _bind(self, host: str | None, port: int) -> bool:
        loop = asyncio.get_running_loop()
        server = Server(self._handler, self._limits)
        try:
            self._sockets = await loop.create_server(server, host, port, backlog=64)
        except OSError as error:
            problem = (
                f"cannot listen on {self._listen}: {error.strerror or error}; free the port or change "
                f"`listen`; tried again every {self._retry_seconds:g} s"
            )
            if problem != self.problem:
                self._say(problem)
            self.problem = problem
            return False
        self._server = server
        if self.problem:
            self._say(f"listening on {self._listen} now")
        self.problem = ""
        return True

    async def _bind_later(self, host: str | None, port: int) -> None:
        while True:
            await asyncio.sleep(self._retry_seconds)
            if await self._bind(host, port):
                return
