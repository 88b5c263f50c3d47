# SPDX-License-Identifier: Apache-2.0
"""The relay as a process: real listeners, a mailbox in a directory, its end, its next life, its commands."""

from __future__ import annotations

import asyncio
import json
import socket
from pathlib import Path

import pytest
from aiohttp import web
from click.testing import CliRunner

from spotwatch.cli import cli
from spotwatch.cli._options import Options, load_settings
from spotwatch.clock import SystemClock
from spotwatch.errors import ConfigError
from spotwatch.mail.mailbox import HEARTBEAT_KEY
from spotwatch.mail.mailbox_form import read_heartbeat, read_letters
from spotwatch.mail.mailbox_keys import PublicKey
from spotwatch.providers._do_mailbox import Whose, open_mailbox
from spotwatch.relay.metrics import RelayMetrics
from spotwatch.relay.service import Relay
from tests.mail.letters import KEY, OURS, letter
from tests.quiet import serving
from tests.relay.home import HERE, Home, notify, page, running, until


@pytest.fixture
def home(tmp_path: Path) -> Home:
    """Give the files of a relay for one Droplet."""
    return Home(tmp_path)


async def test_a_notice_reaches_the_droplet_that_polls(home: Home) -> None:
    """From the listener through the mailbox to the sidecar's own poll, and the metrics say so."""
    relay = home.open()
    async with running(relay):
        await until(lambda: relay.http.is_bound and (home.box / HEARTBEAT_KEY).exists())
        assert await notify(relay.webhook.port, {"event": "reclaim", "name": "spot-1"}) == 202
        mailbox = open_mailbox(
            home.box.as_uri(),
            [KEY.public.text],
            SystemClock(),
            whose=lambda: Whose(droplet_id=OURS),
            environ={},
        )
        await until((home.box / HERE.key).exists)
        (received,) = await mailbox.poll()
        assert (received.to, str(received.evidence)) == (HERE, "strong")
        assert mailbox.problem is None
        age = mailbox.heartbeat_age_seconds
        assert age is not None
        assert age < 15
        await until(lambda: len(relay.outbox) == 0)
        status, text = await page(relay.http.port, "/metrics")
        assert status == 200
        for line in (
            'spotwatch_relay_requests_total{result="accepted",service="json"} 1.0',
            'spotwatch_relay_letters_total{event="reclaim",evidence="strong"} 1.0',
            "spotwatch_relay_outbox_letters 0.0",
            "spotwatch_relay_droplets 1.0",
        ):
            assert line in text
        assert str(OURS) not in text
        assert await page(relay.http.port, "/readyz") == (200, "ok\n")
        assert (await page(relay.http.port, "/healthz"))[0] == 200


async def test_the_fleet_comes_from_the_api(home: Home) -> None:
    """A name is found by the read-only token, and a bad token is a reason not to be ready."""
    asked: list[str] = []

    async def answer(request: web.Request) -> web.Response:
        asked.append(request.headers["Authorization"])
        return web.json_response({"droplets": [{"id": OURS, "name": "spot-1"}]})

    app = web.Application()
    app.router.add_get("/v2/droplets", answer)
    async with serving(app) as url:
        home.droplets = ""
        home.relay = f"token_file = '{home.folder / 'token'}'\napi_url = '{url}'\n"
        relay = home.open()
        assert any("unknown" in reason for reason in relay.not_ready())
        async with running(relay):
            await until(lambda: relay.fleet.is_known)
            assert await notify(relay.webhook.port, {"event": "reclaim", "name": "spot-1"}) == 202
            await until((home.box / HERE.key).exists)
            assert relay.not_ready() == []
    assert asked == ["Bearer dop_v1_secret"]


async def test_a_letter_outlives_the_relay(home: Home) -> None:
    """The mailbox is away, the sender is answered, the relay ends: its next life writes the letter."""
    home.box.write_text("not a directory")
    relay = home.open()
    async with running(relay):
        await until(lambda: relay.webhook.is_bound)
        assert await notify(relay.webhook.port, {"event": "reclaim", "droplet_id": OURS}) == 202
        await until(lambda: relay.outbox.problem is not None)
        assert any("1 letters wait" in reason for reason in relay.not_ready())
    home.box.unlink()
    relay = home.open()
    async with running(relay):
        await until((home.box / HERE.key).exists)
    raw = (home.box / HERE.key).read_bytes()
    opened = read_letters(raw, [KEY.public], to=HERE, now=SystemClock().now())
    assert [str(one.evidence) for one in opened.letters] == ["strong"]


async def test_a_relay_that_cannot_hear_gives_no_sign_of_life(home: Home) -> None:
    """A mailbox that looks alive while nobody could be told would be worse than a silent one."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        home.listen = f"127.0.0.1:{taken.getsockname()[1]}"
        home.relay = "heartbeat_seconds = 1\n"
        relay = home.open()
        async with running(relay):
            await until(lambda: relay.http.is_bound)
            await until(lambda: any("no sign of life" in reason for reason in relay.not_ready()))
            assert any("cannot listen" in reason for reason in relay.not_ready())
            assert (await page(relay.http.port, "/readyz"))[0] == 503
    assert not (home.box / HEARTBEAT_KEY).exists()


async def test_one_relay_at_a_time(home: Home) -> None:
    """A second one on the same files would lose what the first one keeps there."""
    first = home.open()
    with pytest.raises(ConfigError, match="another relay runs"):
        home.open()
    await first.close()
    await home.open().close()


@pytest.mark.parametrize(
    ("without", "says"),
    [
        ("mailbox = ", "relay.mailbox is not set"),
        ("key_file = ", "relay.key_file is not set"),
        ("[[relay.droplet]]", "no Droplet is known"),
    ],
)
def test_what_is_missing_is_named(home: Home, without: str, says: str) -> None:
    """Each with what to write instead."""
    text = home.config.read_text()
    if without == "[[relay.droplet]]":
        text = text.partition(without)[0]
    else:
        text = "\n".join(line for line in text.splitlines() if not line.startswith(without))
    home.config.write_text(text)
    path = home.folder / "other.toml"
    path.write_text(text)
    settings = load_settings(Options(config=path), environ={}).settings
    with pytest.raises(ConfigError, match=says):
        Relay(settings, SystemClock(), environ={})


def test_a_key_that_is_none_is_refused(home: Home) -> None:
    """The file's content is not repeated."""
    (home.folder / "key").write_text("whsec_c2VjcmV0")
    with pytest.raises(ConfigError, match="whsk_") as caught:
        home.open()
    assert "c2VjcmV0" not in str(caught.value)


def test_all_series_exist_from_the_start() -> None:
    """A dashboard shows zeros and not gaps, and no label can grow."""
    metrics = RelayMetrics(["mailgun", "standard"])
    before = metrics.render("")[0].decode()
    for service, result in (("mailgun", "accepted"), ("\n", "x" * 100), ("spot-1", "unsigned")):
        metrics.count_request(service, result)
    after = metrics.render("")[0].decode()
    assert len(before.splitlines()) == len(after.splitlines())
    assert 'spotwatch_relay_requests_total{result="other",service="none"} 1.0' in after
    assert "_created" not in after


def test_make_key_and_once(home: Home) -> None:
    """The two steps of setting it up: a key that only we can read, and a try of everything that it needs."""
    (home.folder / "key").unlink()
    path = str(home.folder / "key")
    made = CliRunner().invoke(cli, ["relay", "--make-key", path])
    assert made.exit_code == 0
    public = PublicKey.parse(made.output)
    assert (home.folder / "key").stat().st_mode & 0o777 == 0o600
    again = CliRunner().invoke(cli, ["relay", "--make-key", path])
    assert isinstance(again.exception, ConfigError)
    assert "never overwritten" in str(again.exception)
    tried = CliRunner().invoke(cli, ["relay", "--once", "--config", str(home.config)])
    assert tried.exit_code == 0, tried.output
    assert "droplets: 1; letters waiting: 0" in tried.output
    beat = read_heartbeat((home.box / HEARTBEAT_KEY).read_bytes(), [public])
    assert beat.interval_seconds == 60


def test_once_says_what_is_wrong(home: Home) -> None:
    """A mailbox that cannot be written is exit 1 and a reason."""
    home.box.write_text("not a directory")
    tried = CliRunner().invoke(cli, ["relay", "--once", "--config", str(home.config)])
    assert tried.exit_code == 1
    assert "cannot write" in tried.output


async def test_what_the_mailbox_holds_is_not_displaced_by_a_new_relay(home: Home) -> None:
    """One that was set up anew, with nothing of its own, adds to what its Droplets may not have read yet."""
    relay = home.open()
    writer = relay._writer
    await writer.put(HERE, [letter(issued_at=SystemClock().now())], now=SystemClock().now())
    await relay.close()
    for file in home.state_dir.iterdir():
        file.unlink()
    relay = home.open()
    async with running(relay):
        await until(lambda: relay.webhook.is_bound)
        assert (
            await notify(relay.webhook.port, {"event": "reclaim", "droplet_id": OURS, "name": "spot-1"})
            == 202
        )
        await until(lambda: len(relay.outbox) == 0)
    raw = (home.box / HERE.key).read_bytes()
    assert len(read_letters(raw, [KEY.public], to=HERE, now=SystemClock().now()).letters) == 2


async def test_status_says_that_it_is_a_relay(home: Home) -> None:
    """It watches nothing, and `Watched: nothing` beside a relay that works would be no answer."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        home.http = f"127.0.0.1:{free.getsockname()[1]}"
    relay = home.open()

    async def status(*more: str) -> str:
        argv = ["status", "--config", str(home.config), *more]
        asked = await asyncio.to_thread(CliRunner().invoke, cli, argv)
        assert asked.exit_code == 0, asked.output
        return asked.output

    async with running(relay):
        await until(lambda: relay.http.is_bound and relay.not_ready() == [])
        said = await status()
        assert "the relay of a fleet" in said
        assert "Ready: a mail would reach its Droplets" in said
        assert "Droplets known: 1\nLetters that wait: 0\n" in said
        assert "Watched" not in said
        home.is_clock_synced = False
        assert "clock is not set" in await status()
        assert json.loads(await status("--json"))["relay"] is True
