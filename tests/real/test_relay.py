# SPDX-License-Identifier: Apache-2.0
"""A relay, a bucket on a real S3 server, and three sidecars with a read-only key: two told, one not.

All are processes. The mail is signed by DKIM, its key is on a name server on loopback.
"""

from __future__ import annotations

import asyncio
import base64
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from botocore.exceptions import ClientError

from spotwatch.mail.mailbox import Address
from spotwatch.mail.mailbox_keys import SigningKey
from spotwatch.webhooks import signed_headers
from tests.mail import name_server
from tests.mail.making import ACCOUNT, SIGNER, genuine, zone
from tests.real.s3_servers import BUCKET, READ_KEY, READ_SECRET, S3Server, start

pytestmark = [pytest.mark.real, pytest.mark.timeout(300)]
_HOOK = bytes(range(32))
_SIGNING = SigningKey.make()


# From the mail to its deadline, and at least from the stop to it: two restarts fit on a slow machine. The
# stop comes earlier, as nobody answers the flush.
_WINDOW = timedelta(seconds=75)
_MARGIN_SECONDS = 10


@pytest.fixture(scope="module")
def weed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    """Return the server that knows read-only keys."""
    with start("weed", tmp_path_factory.mktemp("weed-relay")) as started:
        yield started


@dataclass(slots=True)
class Process:
    """One `spotwatch` of ours."""

    argv: list[str]
    log: Path
    environ: dict[str, str]
    process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it; its log goes on."""
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "spotwatch", *self.argv], stdout=log, stderr=log, env=self.environ
            )

    async def stop(self) -> None:
        """Ask it to end, and wait until it has."""
        process, self.process = self.process, None
        if process is None:
            return
        process.send_signal(signal.SIGTERM)
        try:
            await asyncio.to_thread(process.wait, 60)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            raise


@dataclass(slots=True)
class Sidecar:
    """A daemon on a Droplet, with a read-only key of the mailbox."""

    droplet_id: int
    folder: Path
    process: Process = field(init=False)

    @classmethod
    def make(cls, server: S3Server, folder: Path, droplet_id: int) -> Sidecar:
        """Write its files."""
        folder = folder / str(droplet_id)
        folder.mkdir()
        made = cls(droplet_id, folder)
        environ = server.environ(READ_KEY, READ_SECRET)
        _secret(folder / "mailbox.env", "".join(f"{name}={value}\n" for name, value in environ.items()))
        (folder / "spotwatch.toml").write_text(
            f"providers = ['digitalocean']\nstate_dir = '{folder / 'state'}'\n"
            f"runtime_dir = '{folder / 'run'}'\n"
            "[http]\nlisten = '127.0.0.1:0'\n"
            "[policy]\nsave_seconds = 1\nsafety_factor = 1\nstop_margin_seconds = 1\n"
            f"target_margin_seconds = {_MARGIN_SECONDS}\n"
            "[provider.digitalocean]\nendpoint = 'http://127.0.0.1:1'\n"
            f"droplet_id = {droplet_id}\nmailbox = 's3://{BUCKET}/fleet'\n"
            f"mailbox_keys = ['{_SIGNING.public.text}']\nmailbox_interval_seconds = 2\n"
            f"mailbox_credentials_file = '{folder / 'mailbox.env'}'\n"
        )
        made.process = _spotwatch(["run", "--config", str(folder / "spotwatch.toml")], folder / "log", {})
        return made

    @property
    def order(self) -> str:
        """Return what the trainer is told; empty: nothing yet."""
        try:
            order: dict[str, Any] = json.loads((self.folder / "run" / "order.json").read_bytes())
        except FileNotFoundError:
            return ""
        return str(order["do"])

    @property
    def is_flagged(self) -> bool:
        """Tell whether the flag is up."""
        return (self.folder / "run" / "checkpoint-now").exists()

    async def wait_for_stop(self, seconds: float) -> None:
        """Return once the trainer is told to stop."""
        await _until(lambda: self.order == "stop", seconds, tell=lambda: self.log)

    @property
    def log(self) -> str:
        """Return what it said."""
        return (self.folder / "log").read_text(encoding="utf-8", errors="replace")


def _spotwatch(argv: list[str], log: Path, environ: dict[str, str]) -> Process:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("AWS_", "SPOTWATCH_"))}
    return Process(argv, log, kept | environ)


def _secret(path: Path, text: str) -> None:
    path.touch(mode=0o600)
    path.write_text(text)


@asynccontextmanager
async def _fleet(
    server: S3Server, folder: Path, resolver: str, droplets: dict[int, str]
) -> AsyncIterator[tuple[int, Process]]:
    """Run a relay for these Droplets; yield the port that takes mail, and the process."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port: int = free.getsockname()[1]
    _secret(folder / "hook", "whsec_" + base64.b64encode(_HOOK).decode())
    _secret(folder / "key", _SIGNING.secret_text)
    (folder / "relay.toml").write_text(
        f"state_dir = '{folder / 'state'}'\nruntime_dir = '{folder / 'run'}'\n"
        "[http]\nlisten = '127.0.0.1:0'\n"
        f"[webhook]\nlisten = '127.0.0.1:{port}'\nsecret_files = ['{folder / 'hook'}']\n"
        f"[mail]\naccount_addresses = ['{ACCOUNT}']\nresolvers = ['{resolver}']\n"
        f"[relay]\nmailbox = 's3://{BUCKET}/fleet'\nkey_file = '{folder / 'key'}'\nheartbeat_seconds = 2\n"
        + "".join(
            f"[[relay.droplet]]\nid = {number}\nnames = ['{name}']\n" for number, name in droplets.items()
        )
    )
    relay = _spotwatch(["relay", "--config", str(folder / "relay.toml")], folder / "log", server.environ())
    relay.start()
    try:
        yield port, relay
    finally:
        await relay.stop()


async def _until(condition: Callable[[], object], seconds: float, *, tell: Callable[[], str]) -> None:
    try:
        async with asyncio.timeout(seconds):
            while not condition():  # noqa: ASYNC110 - of other processes, which set no event
                await asyncio.sleep(0.1)
    except TimeoutError:
        pytest.fail(f"not within {seconds:g} s:\n{tell()[-3000:]}")


def _has_beaten(server: S3Server) -> bool:
    try:
        server.client().head_object(Bucket=BUCKET, Key="fleet/reclaims/_heartbeat.json")
    except ClientError:
        return False
    return True


async def _post(port: int, raw: bytes) -> int:
    headers = signed_headers(_HOOK, "msg_1", int(datetime.now(UTC).timestamp()), raw)
    url = f"http://127.0.0.1:{port}/webhook/digitalocean/standard"
    more = {"content-type": "message/rfc822"}
    async with (
        aiohttp.ClientSession() as session,
        session.post(url, data=raw, headers=headers | more) as answer,
    ):
        return answer.status


async def test_a_fleet_is_told_by_one_mail(weed: S3Server, tmp_path: Path) -> None:
    """Two of three are named: both flush at once and stop in time, over restarts; the third hears nothing.

    One sidecar is restarted between the mail and its deadline; one was off when the mail came; the relay is
    killed once the mail was answered for, and does not come back.
    """
    droplets = {700000001: "spot-a", 700000002: "spot-b", 700000003: "spot-c"}
    told, late, other = (Sidecar.make(weed, tmp_path, number) for number in droplets)
    async with (
        name_server.serving(zone(SIGNER.records)) as dns,
        _fleet(weed, tmp_path, dns.address, droplets) as (port, relay),
    ):

        def all_logs() -> str:
            return "\n".join(
                (tmp_path / "log").read_text() if one is None else one.log for one in (None, told)
            )

        await _until(lambda: _has_beaten(weed), 60, tell=(tmp_path / "log").read_text)
        try:
            for sidecar in (told, other):
                sidecar.process.start()
            await _until(
                lambda: "watching" in told.log and "watching" in other.log, 60, tell=lambda: told.log
            )
            sent_at = datetime.now(UTC).replace(microsecond=0)
            deadline = sent_at + _WINDOW
            text = (
                f"Start: {deadline:%Y-%m-%d %H:%M:%S} UTC\r\n\r\n"
                "Your Spot Droplets will be reclaimed.\r\n\r\n"
                "Affected Droplets:\r\n\r\nspot-a\r\nspot-b\r\n"
            )
            assert await _post(port, genuine(sent_at=sent_at, text=text)) == 202
            await _until(lambda: told.is_flagged, 30, tell=all_logs)
            assert told.order == "flush"
            assert relay.process is not None
            relay.process.kill()
            await told.process.stop()
            told.process.start()
            late.process.start()
            await _until(lambda: late.is_flagged, 30, tell=lambda: late.log)
            left = (deadline - datetime.now(UTC)).total_seconds()
            for sidecar in (told, late):
                await sidecar.wait_for_stop(left + 30)
            assert datetime.now(UTC) <= deadline
            assert (other.order, other.is_flagged) == ("", False)
            assert Address(700000003).key not in _keys(weed)
        finally:
            for sidecar in (told, late, other):
                await sidecar.process.stop()


def _keys(server: S3Server) -> set[str]:
    listed = server.client().list_objects_v2(Bucket=BUCKET, Prefix="fleet/").get("Contents", ())
    return {item["Key"].removeprefix("fleet/") for item in listed}
