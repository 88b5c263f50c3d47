# SPDX-License-Identifier: Apache-2.0
"""A listening port that can really be closed and opened again under its number.

It knows sockets and connections, no HTTP content.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket

from aiohttp import web

_BACKLOG = 256
# Long enough for an answer under way, short enough for a test's end.
_LAST_WORDS_SECONDS = 0.05


class Listener:
    """One port of one host.

    Args:
        server: makes the protocol of each connection.
        host: an IPv4 or IPv6 address.
        port: 0 lets the system choose; the number then stays.
    """

    def __init__(self, server: web.Server, host: str, port: int) -> None:
        self._server = server
        self._host = host
        self.port = port
        self._bound: socket.socket | None = None
        """Bound without listening: keeps the number while connections are refused."""
        self._listening: asyncio.Server | None = None
        self._opening: asyncio.Task[None] | None = None

    async def open(self) -> None:
        """Bind and listen.

        Raises:
            OSError: the address is not ours, or taken.
        """
        self._bind()
        await self._listen()

    def refuse(self) -> None:
        """Close the listening socket and every connection; the port stays ours."""
        if self._opening is not None:
            self._opening.cancel()
            self._opening = None
        if self._listening is not None:
            self._listening.close()
            self._listening = None
        for connection in self._server.connections:
            if connection.transport is not None:
                connection.transport.abort()
        if self._bound is not None:
            self._bound.close()
        self._bind()

    def resume(self) -> None:
        """Listen again; connections are queued from here on."""
        if self._listening is not None or self._opening is not None or self._bound is None:
            return
        self._bound.listen(_BACKLOG)
        self._opening = asyncio.get_running_loop().create_task(self._listen())

    async def close(self) -> None:
        """Close everything: no task, socket or connection is left."""
        if self._opening is not None:
            self._opening.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._opening
        if self._listening is not None:
            self._listening.close()
        if self._bound is not None:
            self._bound.close()
        transports = [c.transport for c in self._server.connections if c.transport is not None]
        self._server.pre_shutdown()
        await self._server.shutdown(_LAST_WORDS_SECONDS)
        # A client that does not read would keep its connection open for as long as it likes.
        for transport in transports:
            transport.abort()
        if self._listening is not None:
            await self._listening.wait_closed()

    def _bind(self) -> None:
        family = socket.AF_INET6 if ":" in self._host else socket.AF_INET
        bound = socket.socket(family, socket.SOCK_STREAM)
        try:
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            bound.setblocking(False)
            bound.bind((self._host, self.port))
        except OSError:
            bound.close()
            raise
        self._bound = bound
        self.port = bound.getsockname()[1]

    async def _listen(self) -> None:
        loop = asyncio.get_running_loop()
        bound, self._bound = self._bound, None
        if bound is not None:
            self._listening = await loop.create_server(self._server, sock=bound, backlog=_BACKLOG)
        self._opening = None
