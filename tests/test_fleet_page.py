# SPDX-License-Identifier: Apache-2.0
"""The page about fleets: its settings load, its objects and metrics exist, its figures are the code's."""

from __future__ import annotations

import asyncio
import base64
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from spotwatch.cli._options import Options, load_settings
from spotwatch.clock import SystemClock
from spotwatch.config import Relay, Settings
from spotwatch.mail.mailbox import BROADCAST, HEARTBEAT_KEY, Address, address_of_name
from spotwatch.mail.mailbox_keys import PublicKey
from spotwatch.metrics import Metrics
from spotwatch.providers import _do_mailbox
from spotwatch.relay.fleet import FRESH_SECONDS
from spotwatch.relay.making import MAX_HEARTBEAT_SECONDS, check
from spotwatch.relay.metrics import RelayMetrics
from spotwatch.relay.service import Relay as Service
from tests.mail.letters import KEY
from tests.mail.making import plain
from tests.relay.home import running, until
from tests.train.s3_stand_in import S3StandIn

_PAGE = (Path(__file__).parents[1] / "docs" / "fleet.md").read_text(encoding="utf-8")
_RELAY, _BY_HAND, _DROPLET = re.findall(r"```toml\n(.*?)```", _PAGE, re.DOTALL)


@pytest.fixture
def secrets(tmp_path: Path) -> Path:
    """Give a directory with the secrets that the page names, as systemd passes them."""
    for name in ("webhook-secret", "relay-key", "api-token", "mailgun-key", "mailbox.env"):
        (tmp_path / name).touch(mode=0o600)
        (tmp_path / name).write_text("a secret")
    return tmp_path


def _load(text: str, secrets: Path) -> Settings:
    config = secrets / "spotwatch.toml"
    config.write_text(text.replace("/etc/spotwatch", str(secrets)))
    environ = {"CREDENTIALS_DIRECTORY": str(secrets)}
    return load_settings(
        Options(config=config, state_dir=secrets, runtime_dir=secrets), environ=environ
    ).settings


@pytest.mark.parametrize("more", ["", _BY_HAND])
def test_the_relays_settings_load(secrets: Path, more: str) -> None:
    """With the API's token, and with Droplets written down instead of it."""
    text = _RELAY.replace('token_file = "api-token"\n', "") if more else _RELAY
    settings = _load(text + more, secrets)
    check(settings)
    assert set(settings.inbound) == {"mailgun"}
    assert bool(settings.relay.droplet) is bool(more)


def test_a_droplets_settings_load(secrets: Path) -> None:
    """They are what the mailbox is opened with."""
    config = _load(_DROPLET, secrets).provider["digitalocean"]
    assert config.mailbox == tomllib.loads(_RELAY)["relay"]["mailbox"]
    assert [PublicKey.parse(text).text for text in config.mailbox_keys] == list(config.mailbox_keys)
    assert config.mailbox_interval_seconds == _do_mailbox.INTERVAL_SECONDS == 20


def test_the_objects_are_where_the_page_says() -> None:
    """Whoever writes a rule or a policy for them needs their names."""
    for key in (Address(512345678).key, BROADCAST.key, HEARTBEAT_KEY):
        assert key in _PAGE
    assert address_of_name("x").key.startswith("reclaims/by-name/")


def test_the_metrics_exist() -> None:
    """Each that the page tells to watch is a series from the start."""
    exposed = b"".join(made.render("")[0] for made in (Metrics(["digitalocean"]), RelayMetrics([]))).decode()
    named = set(re.findall(r"`(spotwatch_[a-z_]+?)(?: 0)?`", _PAGE)) - {"spotwatch_relay"}
    assert len(named) == 7
    for name in named:
        assert re.search(rf"(?m)^{name}(\{{| )", exposed), name


def test_what_a_poll_costs() -> None:
    """The figures follow from the intervals."""
    objects = len(_do_mailbox._addresses(_do_mailbox.Whose(droplet_id=1, names=("spot-1",))))
    hourly = objects * 3600 / _do_mailbox.INTERVAL_SECONDS + 3600 / _do_mailbox._HEARTBEAT_SECONDS
    assert hourly == 600
    assert "600 requests an hour" in _PAGE
    assert round(hourly * 24 * 30 * 0.0004 / 1000, 2) == 0.17
    assert f"above {_do_mailbox.SILENT_SECONDS:.0f}" in _PAGE


def test_a_silent_relay_is_missed_when_the_page_says() -> None:
    """However rare the signs of life may be, metric and `provider_up` tell within the same ten minutes."""
    assert Relay().heartbeat_seconds == 60
    assert f"at most {MAX_HEARTBEAT_SECONDS:.0f}" in _PAGE
    assert MAX_HEARTBEAT_SECONDS * _do_mailbox.SILENT_INTERVALS <= _do_mailbox.SILENT_SECONDS
    assert FRESH_SECONDS == 180
    assert "counts for three minutes" in _PAGE


def _block(words: str) -> str:
    """Return the one block of commands with these words."""
    (found,) = [block for block in re.findall(r"```bash\n(.*?)```", _PAGE, re.DOTALL) if words in block]
    return str(found)


def _run(script: str, secrets: Path) -> subprocess.CompletedProcess[str]:
    """Run commands of the page with the files elsewhere, and a mail that is there."""
    script = script.replace("/etc/spotwatch", str(secrets))
    script = re.sub(
        r"(/opt/spotwatch/bin/)?spotwatch (?=relay|mail)", f"{sys.executable} -m spotwatch ", script
    )
    environ = {"PATH": os.environ["PATH"], "SPOTWATCH_STATE_DIR": str(secrets / "state")}
    environ |= {name: os.environ[name] for name in ("PYTHONPATH",) if name in os.environ}
    return subprocess.run(
        ["bash", "-c", script],
        cwd=secrets,
        env=environ,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def _write_relay(secrets: Path, *, listen: str = "127.0.0.1:9476", box: str = "spaces://my-reclaims") -> None:
    """Write the page's configuration with the Droplets by hand, and secrets that are some."""
    text = (_RELAY + _BY_HAND).replace('token_file = "api-token"\n', "")
    text = text.replace("127.0.0.1:9476", listen).replace("spaces://my-reclaims", box)
    (secrets / "relay.toml").write_text(text)
    (secrets / "relay-key").write_text(KEY.secret_text)
    (secrets / "webhook-secret").write_text("whsec_" + base64.b64encode(bytes(range(32))).decode())


def test_the_relay_is_tried_by_hand(secrets: Path) -> None:
    """The command of the page reads key and secrets where they are, and writes a sign of life."""
    _write_relay(secrets)
    with S3StandIn() as store:
        (secrets / "relay.env").write_text(
            f"SPACES_KEY=k\nSPACES_SECRET=s\nSPACES_REGION=nyc3\nSPACES_ENDPOINT={store.url}\n"
        )
        done = _run(_block("relay.toml --once"), secrets)
        assert done.returncode == 0, done
        assert any(key.endswith(HEARTBEAT_KEY) for key in store.objects)
    assert done.stdout.startswith("droplets: 1")


async def test_a_mail_is_handed_on_by_hand(secrets: Path) -> None:
    """The command of the page for mails of the last hours, on the relay, which takes it."""
    _write_relay(secrets, listen="127.0.0.1:0", box=(secrets / "box").as_uri())
    (secrets / "mail.eml").write_bytes(plain(sent_at=SystemClock().now()))
    (found,) = re.findall(r"`(spotwatch mail post [^`]*)`", _PAGE)
    options = Options(config=secrets / "relay.toml", state_dir=secrets / "state", runtime_dir=secrets)
    environ = {"CREDENTIALS_DIRECTORY": str(secrets)}
    settings = load_settings(options, environ=environ).settings
    relay = Service(settings, SystemClock(), environ=environ, clock_sync=lambda: True)
    async with running(relay):
        await until(lambda: relay.webhook.is_bound)
        url = f"http://127.0.0.1:{relay.webhook.port}/webhook/digitalocean/standard"
        posting = found.replace("mail post", f"mail post --url {url}")
        done = await asyncio.to_thread(_run, posting, secrets)
        assert (done.returncode, done.stdout.strip()[-3:]) == (0, "202"), done
