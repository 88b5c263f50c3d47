# SPDX-License-Identifier: Apache-2.0
"""A mail's whole way: swaks, Postfix, its pipe, the webhook, an order, and a checkpoint that is proven.

The name server that publishes DigitalOcean's key is ours, and so is the key.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from pathlib import Path
from typing import Any

import dns.message
import dns.rrset
import pytest

from tests.e2e.harness import until
from tests.mail.name_server import serving
from tests.mail.signing import Signer
from tests.real.mail_server import TOOLS, USER, MailServer, private_file

pytestmark = [pytest.mark.real, pytest.mark.timeout(400)]

DROPLET = 512345678
SECRET = "whsec_AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8="
SIGNER = Signer()
PATIENCE_SECONDS = 90.0
"""A trainer imports torch first, which takes its time on a busy machine."""


def mail(goes_at: datetime, *, message_id: str = "one@digitalocean.com") -> bytes:
    """Return a reclaim mail as DigitalOcean may write it, unsigned."""
    now = datetime.now(UTC)
    return (
        "From: DigitalOcean <support@digitalocean.com>\r\n"
        "To: ops@example.com\r\n"
        "Subject: Your spot Droplet will be reclaimed\r\n"
        f"Date: {format_datetime(now)}\r\n"
        f"Message-ID: <{message_id}>\r\n"
        "MIME-Version: 1.0\r\n"
        "Content-Type: text/plain; charset=utf-8\r\n"
        "Content-Transfer-Encoding: 8bit\r\n"
        "\r\n"
        "Hello,\r\n\r\n"
        f"Your spot Droplet spot-trainer-01 (id {DROPLET}) will be reclaimed at\r\n"
        f"{goes_at:%Y-%m-%d %H:%M} UTC.\r\n\r\nGrüße\r\n"
    ).encode()


@dataclass
class Site:
    """A Droplet with its daemon and trainer, and the mail server that knows its secret."""

    folder: Path
    server: MailServer
    environment: dict[str, str]
    processes: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def start(self) -> subprocess.Popen[bytes]:
        """Start the daemon with the trainer as its child."""
        trainer = [sys.executable, "-m", "spotwatch.drill.trainer", "--url", str(self.folder / "store")]
        arguments = ["--total-steps", "100000", "--every-steps", "100000", "--step-seconds", "0.02"]
        with (self.folder / "daemon.log").open("ab") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "spotwatch", "exec", "--", *trainer, *arguments],
                env=self.environment,
                stdout=log,
                stderr=log,
            )
        self.processes.append(process)
        return process

    def events(self, name: str) -> list[dict[str, Any]]:
        """Return the rows of the daemon's log with that event."""
        path = self.folder / "daemon.log"
        lines = path.read_text(errors="replace").splitlines() if path.exists() else []
        rows = [json.loads(line) for line in lines if line.startswith("{")]
        return [row for row in rows if row.get("event") == name]

    @property
    def what_was_said(self) -> str:
        """Return both logs, for a test that fails."""
        path = self.folder / "daemon.log"
        return self.server.log + (path.read_text(errors="replace") if path.exists() else "")

    async def until(self, condition: Callable[[], Any], what: str) -> Any:
        """Return what `condition` returns once it is true; a failure shows both logs."""
        try:
            return await until(condition, PATIENCE_SECONDS, what)
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self.what_was_said}") from error

    async def is_training(self) -> None:
        """Wait until the trainer has reported a step."""
        status = self.folder / "run" / "status"
        await self.until(
            lambda: any((json.loads(p.read_bytes()).get("step") or 0) > 3 for p in status.glob("*.json")),
            "the trainer trains",
        )

    async def saved(self, do: str) -> list[dict[str, Any]]:
        """Wait for the answer to that order, and return all answers."""

        def found() -> list[dict[str, Any]]:
            return [row for row in self.events("answered") if row.get("do") == do]

        answers: list[dict[str, Any]] = await self.until(found, f"a {do} that is answered")
        return answers


@pytest.fixture
def folder() -> Iterator[Path]:
    """Give a folder that other users may enter."""
    lacks = [tool for tool in TOOLS if shutil.which(tool) is None] + ["root"] * (os.geteuid() != 0)
    if lacks and os.environ.get("CI") == "true":
        pytest.fail(f"in CI this must run, but it lacks {', '.join(lacks)}")
    if lacks:
        pytest.skip(f"lacks {', '.join(lacks)}")
    with tempfile.TemporaryDirectory(prefix="spotwatch-test-") as made:
        Path(made).chmod(0o755)
        yield Path(made)


@asynccontextmanager
async def name_server() -> AsyncIterator[str]:
    """Publish the key of `SIGNER`."""
    records = SIGNER.records

    def answer(question: dns.message.Message) -> bytes:
        response = dns.message.make_response(question)
        name = question.question[0].name
        text = records.get(name.to_text(omit_final_dot=True).lower())
        if text:
            pieces = " ".join(f'"{text[at : at + 200]}"' for at in range(0, len(text), 200))
            response.answer.append(dns.rrset.from_text(name, 300, "IN", "TXT", pieces))
        return response.to_wire()

    async with serving(answer) as server:
        yield server.address


@pytest.fixture
async def site(folder: Path) -> AsyncIterator[Site]:
    """Give a Droplet whose daemon is not yet running, and a mail server that would post to it."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        listen = f"127.0.0.1:{free.getsockname()[1]}"
    theirs = private_file(folder / "pipe-secret", SECRET, USER)
    ours = private_file(folder / "webhook-secret", SECRET, 0)
    async with name_server() as resolver:
        config = folder / "spotwatch.toml"
        config.write_text(
            'providers = ["digitalocean"]\n'
            f'[webhook]\nlisten = "{listen}"\nsecret_files = ["{ours}"]\n'
            f'[mail]\naccount_addresses = ["ops@example.com"]\nresolvers = ["{resolver}"]\n'
            f'[provider.digitalocean]\ndroplet_id = {DROPLET}\nendpoint = "http://127.0.0.1:1"\n'
        )
        environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith("SPOTWATCH_")},
            "SPOTWATCH_CONFIG": str(config),
            "SPOTWATCH_RUNTIME_DIR": str(folder / "run"),
            "SPOTWATCH_STATE_DIR": str(folder / "state"),
            "SPOTWATCH_HTTP__LISTEN": "",
            "SPOTWATCH_LOG__FORMAT": "json",
        }
        command = [
            str(Path(sys.prefix) / "bin" / "spotwatch"),
            *("mail", "post", "--url", f"http://{listen}/webhook/digitalocean/standard"),
            *("--secret-file", str(theirs)),
        ]
        with MailServer(*command) as server:
            made = Site(folder, server, environment)
            yield made
            for process in made.processes:
                process.terminate()
                try:
                    await asyncio.to_thread(process.wait, 15)
                except subprocess.TimeoutExpired:
                    process.kill()
                    process.wait()


async def test_a_mail_that_proves_nothing_makes_the_trainer_save_and_go_on(site: Site) -> None:
    """By SMTP as from a stranger: a flush, a durable checkpoint, and no stop though the time is near."""
    trainer = site.start()
    await site.is_training()
    done = await asyncio.to_thread(site.server.send, mail(datetime.now(UTC) + timedelta(minutes=5)))
    assert done.returncode == 0, done.stdout
    assert "250 2.0.0 Ok: queued" in done.stdout
    (answer,) = await site.saved("flush")
    assert answer["answer"] == "durable", site.what_was_said
    assert trainer.poll() is None
    assert {row["do"] for row in site.events("ordered")} == {"flush"}
    await site.until(lambda: "status=sent" in site.server.log, "Postfix is told that it was taken")
    pointer = list((site.folder / "store").rglob("LATEST*"))
    assert pointer, sorted((site.folder / "store").rglob("*"))


async def test_a_proven_mail_makes_the_trainer_save_and_exit(site: Site) -> None:
    """Postfix leaves DigitalOcean's signature intact: a stop, a durable checkpoint, exit status 75."""
    trainer = site.start()
    await site.is_training()
    signed = SIGNER.sign(mail(datetime.now(UTC) + timedelta(minutes=5)))
    done = await asyncio.to_thread(site.server.send, signed)
    assert done.returncode == 0, done.stdout
    answers = await site.saved("stop")
    assert answers[-1]["answer"] == "durable", site.what_was_said
    await site.until(lambda: trainer.poll() is not None, "the daemon exits with its trainer")
    assert trainer.returncode == 75


async def test_a_mail_waits_in_the_queue_until_the_daemon_is_there(site: Site) -> None:
    """A daemon that is down costs time and no mail: Postfix keeps it, and tries again."""
    signed = SIGNER.sign(mail(datetime.now(UTC) + timedelta(hours=2)))
    done = await asyncio.to_thread(site.server.send, signed)
    assert done.returncode == 0, done.stdout
    await site.until(lambda: "status=deferred" in site.server.log, "Postfix puts it off")
    assert "does not answer" in site.server.log
    site.start()
    (answer,) = await site.saved("flush")
    assert answer["answer"] == "durable", site.what_was_said
    await site.until(lambda: "status=sent" in site.server.log, "Postfix is told that it was taken")


async def test_a_wrong_secret_keeps_the_mail_in_the_queue(site: Site) -> None:
    """Nothing goes back to DigitalOcean, which might stop writing to an address that bounces."""
    (site.folder / "pipe-secret").write_text("whsec_" + "B" * 43 + "=")
    site.start()
    await site.is_training()
    done = await asyncio.to_thread(site.server.send, mail(datetime.now(UTC) + timedelta(hours=2)))
    assert done.returncode == 0, done.stdout
    await site.until(lambda: "status=deferred" in site.server.log, "Postfix puts it off")
    assert "the secret is not the receiver's" in site.server.log
    assert "status=bounced" not in site.server.log
    assert site.events("ordered") == []
