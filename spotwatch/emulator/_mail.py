# SPDX-License-Identifier: Apache-2.0
"""DigitalOcean's mail as it may look, signed by a key of the emulator's own, and a name server that shows it.

No reclaim mail has been published; the form follows DigitalOcean's maintenance mails as public bug reports
quote them: a time after `Start:`, names alone, one a line, at the end. Sending is not done here.
"""

from __future__ import annotations

import asyncio
import base64
import secrets
from collections.abc import Mapping
from datetime import datetime
from email.utils import format_datetime
from typing import Any

from spotwatch.mail.extra import require

DOMAIN = "digitalocean.com"
SENDER = f"DigitalOcean <support@{DOMAIN}>"
ACCOUNT = "owner@example.com"
"""Where the account's mail goes."""
_SELECTOR = "emulator"
_KEY_BITS = 2048
_SIGNED = (b"from", b"to", b"subject", b"date", b"message-id", b"mime-version", b"content-type")
_TEXTS: Mapping[str, tuple[str, str]] = {
    "reclaim": (
        "Your Spot Droplet will be reclaimed",
        (
            "We need the capacity of the Spot Droplets listed below and will reclaim them.\n"
            "They will be destroyed at the time given; please save your work before.\n"
            "\n"
            "Start: {at}\n"
        ),
    ),
    "cancel": (
        "Cancelled: reclaim of your Spot Droplet",
        "The reclaim of the Spot Droplets listed below has been cancelled. They will not be reclaimed.\n",
    ),
}


class Mailer:
    """Writes mails and signs them with DKIM.

    Raises:
        ConfigError: `spotwatch[mail]` is not installed.
    """

    def __init__(self) -> None:
        rsa = require("cryptography.hazmat.primitives.asymmetric.rsa")
        forms = require("cryptography.hazmat.primitives.serialization")
        key = rsa.generate_private_key(public_exponent=65537, key_size=_KEY_BITS)
        self._private = key.private_bytes(
            forms.Encoding.PEM, forms.PrivateFormat.TraditionalOpenSSL, forms.NoEncryption()
        )
        public = key.public_key().public_bytes(forms.Encoding.DER, forms.PublicFormat.SubjectPublicKeyInfo)
        self.records = {
            f"{_SELECTOR}._domainkey.{DOMAIN}": f"v=DKIM1; k=rsa; p={base64.b64encode(public).decode()}"
        }
        """What a name server has to say: name -> TXT."""

    def write(self, event: str, *, named: str, at: str, sent_at: datetime) -> bytes:
        """Return a mail that one might get.

        Args:
            event: `reclaim` or `cancel`.
            named: how it calls the Droplet.
            at: when the Droplet goes, as it is to be written.
            sent_at: aware; the mail's date, whole seconds.
        """
        subject, text = _TEXTS[event]
        lines = [
            f"From: {SENDER}",
            f"To: {ACCOUNT}",
            f"Subject: {subject}",
            f"Date: {format_datetime(sent_at)}",
            f"Message-ID: <{secrets.token_hex(12)}@{DOMAIN}>",
            "MIME-Version: 1.0",
            "Content-Type: text/plain; charset=utf-8",
            "",
            "Hello,",
            "",
            *text.format(at=at).splitlines(),
            "",
            "Affected Droplets:",
            named,
            "",
            "Team DigitalOcean",
            "",
        ]
        mail = "\r\n".join(lines).encode()
        signature: bytes = require("dkim").sign(
            mail, _SELECTOR.encode(), DOMAIN.encode(), self._private, include_headers=list(_SIGNED)
        )
        return signature + mail


class NameServer(asyncio.DatagramProtocol):
    """Answers TXT questions on loopback, over UDP.

    Args:
        records: name -> text of at most 510 bytes.
    """

    def __init__(self, records: Mapping[str, str]) -> None:
        self._records = {name.lower(): text for name, text in records.items()}
        self._transport: asyncio.DatagramTransport | None = None
        self.address = ""
        """`127.0.0.1:PORT` while it listens."""

    async def open(self) -> None:
        """Listen on a free port."""
        loop = asyncio.get_running_loop()
        self._transport, _ = await loop.create_datagram_endpoint(lambda: self, ("127.0.0.1", 0))
        host, port = self._transport.get_extra_info("sockname")
        self.address = f"{host}:{port}"

    def close(self) -> None:
        """Stop listening."""
        if self._transport is not None:
            self._transport.close()
            self._transport = None

    def datagram_received(self, data: bytes, addr: tuple[str | Any, int]) -> None:
        """Answer one question; what is none is left alone."""
        message = require("dns.message")
        try:
            question = message.from_wire(data)
            reply = message.make_response(question)
            asked = question.question[0]
        except (require("dns.exception").DNSException, IndexError):
            return
        text = self._records.get(asked.name.to_text(omit_final_dot=True).lower())
        if text is None:
            reply.set_rcode(require("dns.rcode").NXDOMAIN)
        elif asked.rdtype == require("dns.rdatatype").TXT:
            parts = " ".join(f'"{text[at : at + 255]}"' for at in range(0, len(text), 255))
            reply.answer.append(require("dns.rrset").from_text(asked.name, 300, "IN", "TXT", parts))
        if self._transport is not None:
            self._transport.sendto(reply.to_wire(), addr)
