# SPDX-License-Identifier: Apache-2.0
"""The pages of the services: their settings load, and what they say proves it does."""

from __future__ import annotations

import asyncio
import base64
import re
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from spotwatch.clock import SystemClock
from spotwatch.mail import inbound
from spotwatch.mail.inbound import Refused
from spotwatch.mail.model import Delivery
from spotwatch.received import Received, Verdict
from spotwatch.server import WebhookServer
from tests.mail.inbound import requests_sendgrid
from tests.mail.inbound.services import MAIL

PAGES = Path(__file__).parents[3] / "docs" / "mail"
SECRETS = {
    "mailgun": "key-0123456789abcdef0123456789abcdef",
    "postmark": "spotwatch:0123456789abcdef0123456789abcdef",
    "forwardemail": "0123456789abcdef0123456789abcdef",
}
NAMES = ("mailgun", "sendgrid", "postmark", "forwardemail")
KEY_FIELDS = {
    "mailgun": "signing_key_files",
    "postmark": "password_files",
    "forwardemail": "key_files",
    "sendgrid": "verification_keys",
}


class Kept:
    """A receiver that opens requests and keeps what they handed over."""

    def __init__(self, service: inbound.Service) -> None:
        self.service = service
        self.deliveries: list[Delivery] = []

    async def receive(self, request: Received) -> Verdict:
        """Open one."""
        try:
            opened = await self.service.open(request)
        except Refused as refused:
            return refused.verdict
        if isinstance(opened, Delivery):
            self.deliveries.append(opened)
        return Verdict(status=202, result="accepted")


def blocks(name: str, language: str) -> list[str]:
    """Return the code of one language on a page."""
    text = (PAGES / f"{name}.md").read_text()
    return re.findall(rf"```{language}\n(.*?)```", text, re.DOTALL)


def proof(name: str, tmp_path: Path) -> list[str]:
    """Return the page's script and its first argument."""
    [script] = [code for code in blocks(name, "bash") if "Usage: prove" in code]
    path = tmp_path / "prove"
    path.write_text(script)
    secret = tmp_path / "secret"
    if name == "sendgrid":
        key = requests_sendgrid.key()
        pem = key.private_bytes(Encoding.PEM, PrivateFormat.TraditionalOpenSSL, NoEncryption())
        secret.write_bytes(pem)
    else:
        secret.write_text(SECRETS[name])
    return ["bash", str(path), str(secret)]


def made(name: str) -> inbound.Service:
    """Return the service as the page's settings make it."""
    [toml] = blocks(name, "toml")
    section: dict[str, Any] = tomllib.loads(toml)["inbound"][name]
    assert set(section) == {KEY_FIELDS[name]}
    kind = inbound.load(name)
    values = (requests_sendgrid.public(requests_sendgrid.key()),) if name == "sendgrid" else ("secret",)
    return kind(
        kind.config_class(**{KEY_FIELDS[name]: values}),
        read_secret=lambda _: SECRETS[name],
        clock=SystemClock(),
        tolerance_seconds=300,
    )


@pytest.mark.parametrize("name", NAMES)
async def test_the_pages_script_proves_it(name: str, tmp_path: Path) -> None:
    """Run as printed it is answered with 202, and the mail arrives byte for byte."""
    mail = tmp_path / "mail.eml"
    mail.write_bytes(MAIL)
    kept = Kept(made(name))
    server = WebhookServer(
        "127.0.0.1:0", receivers={"digitalocean": kept}, on_request=lambda *_: None, say=print
    )
    await server.start()
    try:
        path = name + ("/mime" if name == "mailgun" else "")
        url = f"http://127.0.0.1:{server.port}/webhook/digitalocean/{path}"
        command = [*proof(name, tmp_path), url, str(mail)]
        done = await asyncio.to_thread(
            subprocess.run, command, capture_output=True, text=True, check=False, timeout=15
        )
    finally:
        await server.close()
    assert (done.stdout.strip(), done.stderr) == ("202", "")
    assert [delivery.raw for delivery in kept.deliveries] == [MAIL]


def test_the_sendgrid_page_shows_a_key_as_the_console_does() -> None:
    """It begins as each P-256 key begins."""
    [toml] = blocks("sendgrid", "toml")
    [shown] = tomllib.loads(toml)["inbound"]["sendgrid"]["verification_keys"]
    begin = shown.removesuffix("...")
    assert requests_sendgrid.public(requests_sendgrid.key()).startswith(begin)
    assert base64.b64decode(begin)
