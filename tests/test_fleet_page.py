# SPDX-License-Identifier: Apache-2.0
"""The page about fleets: its settings load, its objects and metrics exist, its figures are the code's."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

from spotwatch.cli._options import Options, load_settings
from spotwatch.config import Settings
from spotwatch.mail.mailbox import BROADCAST, HEARTBEAT_KEY, Address, address_of_name
from spotwatch.mail.mailbox_keys import PublicKey
from spotwatch.metrics import Metrics
from spotwatch.providers import _do_mailbox
from spotwatch.relay.making import check
from spotwatch.relay.metrics import RelayMetrics

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
    assert len(named) == 6
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
