# SPDX-License-Identifier: Apache-2.0
"""Where a listener is bound, and what happens when it cannot be: it is said, and tried again.

It does not know what is asked or answered.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable

# Not `aiohttp.web`, which brings a whole framework: 1.4 MiB that a daemon keeps for ever.
from aiohttp.web_request import BaseRequest
from aiohttp.web_response import StreamResponse

from spotwatch.config_check import Listen, parse_listen
from spotwatch.webhook_guard import Limits, Server

RETRY_SECONDS = 30.0


class Listener:
    """A guarded HTTP listener that is bound sooner or later, and never raises because it is not.

    Args:
        listen: `host:port`; empty: there is none, and nothing is ever bound.
        handler: answers a request.
        say: takes one line for the log, when binding fails and when it succeeds after that.
        limits: what a peer may cost.
        retry_seconds: between two tries to bind.

    Raises:
        ValueError: `listen` is not of a known form.
    """

    def __init__(
        self,
        listen: str,
        handler: Callable[[BaseRequest], Awaitable[StreamResponse]],
        *,
        say: Callable[[str], None],
        limits: Limits,
        retry_seconds: float = RETRY_SECONDS,
    ) -> None:
        self._listen = listen
        self._address = parse_listen(listen)
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
        if not await self._bind(self._address):
            self._retry = asyncio.create_task(self._bind_later(self._address), name="listener-retry")

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

    async def _bind(self, address: Listen) -> bool:
        loop = asyncio.get_running_loop()
        server = Server(self._handler, self._limits)
        try:
            self._sockets = await loop.create_server(server, address.host, address.port, backlog=64)
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

    async def _bind_later(self, address: Listen) -> None:
        while True:
            await asyncio.sleep(self._retry_seconds)
            if await self._bind(address):
                return
