# SPDX-License-Identifier: Apache-2.0
"""A name server on loopback, by UDP and TCP, that can be made to misbehave.

It serves TXT records from memory, and knows no zone.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import cast

import dns.flags
import dns.message
import dns.rcode
import dns.rrset

Answer = Callable[[dns.message.Message], bytes | None]
"""Turns a question into the bytes of an answer; None: silence."""


class NameServer(asyncio.DatagramProtocol):
    """Answers what `answer` says; by UDP only what fits, as a real one does.

    Args:
        answer: called for each question.
    """

    def __init__(self, answer: Answer) -> None:
        self._answer = answer
        self._transport: asyncio.DatagramTransport | None = None
        self.asked: list[tuple[str, str]] = []
        """How and for what, in order."""
        self.address = ""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the way to answer."""
        # Python 3.11 does not derive its own class from this one.
        self._transport = cast("asyncio.DatagramTransport", transport)

    def datagram_received(self, data: bytes, peer: tuple[str, int]) -> None:
        """Answer one question by UDP, truncated if need be."""
        question = dns.message.from_wire(data)
        answer = self._ask("udp", question)
        if answer is None:
            return
        if len(answer) > max(question.payload, 512):
            truncated = dns.message.make_response(question)
            truncated.flags |= dns.flags.TC
            answer = truncated.to_wire()
        assert self._transport is not None
        self._transport.sendto(answer, peer)

    async def serve_stream(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer one question by TCP."""
        data = await reader.readexactly(int.from_bytes(await reader.readexactly(2)))
        answer = self._ask("tcp", dns.message.from_wire(data))
        if answer is not None:
            writer.write(len(answer).to_bytes(2) + answer)
            await writer.drain()
        writer.close()
        await writer.wait_closed()

    def _ask(self, how: str, question: dns.message.Message) -> bytes | None:
        self.asked.append((how, question.question[0].name.to_text(omit_final_dot=True)))
        return self._answer(question)


@asynccontextmanager
async def serving(answer: Answer) -> AsyncIterator[NameServer]:
    """Serve on one free loopback port, UDP and TCP."""
    loop = asyncio.get_running_loop()
    server = NameServer(answer)
    tcp = await asyncio.start_server(server.serve_stream, "127.0.0.1", 0)
    port = tcp.sockets[0].getsockname()[1]
    udp, _ = await loop.create_datagram_endpoint(lambda: server, local_addr=("127.0.0.1", port))
    server.address = f"127.0.0.1:{port}"
    try:
        yield server
    finally:
        udp.close()
        tcp.close()
        await tcp.wait_closed()


def says(*strings: str, ttl: int = 300, rcode: dns.rcode.Rcode = dns.rcode.NOERROR) -> Answer:
    """Return who answers each question with one TXT record of these strings, or none without any."""

    def answer(question: dns.message.Message) -> bytes:
        response = dns.message.make_response(question)
        response.set_rcode(rcode)
        if strings:
            text = " ".join(f'"{string}"' for string in strings)
            response.answer.append(dns.rrset.from_text(question.question[0].name, ttl, "IN", "TXT", text))
        return response.to_wire(max_size=65535)

    return answer


def is_called(*names: str) -> Answer:
    """Return who answers that each of `names` is another name of the next one, with no record at the end."""

    def answer(question: dns.message.Message) -> bytes:
        response = dns.message.make_response(question)
        for name, other in itertools.pairwise(names):
            response.answer.append(dns.rrset.from_text(f"{name}.", 300, "IN", "CNAME", f"{other}."))
        return response.to_wire()

    return answer
