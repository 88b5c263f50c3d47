# SPDX-License-Identifier: Apache-2.0
"""That a provider is made of its own section, with what it may know of the daemon and no more."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from spotwatch import providers
from spotwatch.config import Mail, Settings, Webhook
from spotwatch.errors import ConfigError
from spotwatch.policy import Policy
from spotwatch.provider_making import make_provider
from spotwatch.providers import Context, Windowed
from spotwatch.providers.aws import Config as AwsConfig
from spotwatch.providers.gcp import Config as GcpConfig
from spotwatch.testing import FakeClock

SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"


class Seen:
    """A provider that keeps what it was given."""

    config_class = dict

    def __init__(self, config: Any, context: Context) -> None:
        self.config = config
        self.context = context


def test_section_and_context_arrive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Secrets, tolerance, places and the known end; a section that is missing is its defaults."""
    monkeypatch.setattr(providers, "load", lambda _: Seen)
    settings = Settings(
        runtime_dir=tmp_path,
        policy=Policy(ends_at="2026-12-01T00:00:00Z"),
        webhook=Webhook(listen="127.0.0.1:0", secret=SECRET, tolerance_seconds=77.0),
        provider={"one": {"key": 1}},
    )
    made: Any = make_provider(settings, "one", FakeClock(), state_dir=tmp_path / "state")
    assert made.config == {"key": 1}
    assert made.context.state_dir == tmp_path / "state"
    assert made.context.webhook_tolerance_seconds == 77.0
    assert [len(secret) for secret in made.context.webhook_secrets] == [24]
    assert made.context.policy_times == {"ends_at": "2026-12-01T00:00:00Z"}
    other: Any = make_provider(settings, "other", FakeClock(), state_dir=None)
    assert (other.config, other.context.state_dir) == ({}, None)


def test_what_mail_needs_arrives_with_a_listener_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Services, their secrets by name, rules, and whether the clock is right; nobody can post without one."""
    monkeypatch.setattr(providers, "load", lambda _: Seen)
    secret = tmp_path / "key"
    secret.write_text("hunter2\n")
    secret.chmod(0o600)
    rules = Mail(account_addresses=("me@example.com",))
    settings = Settings(runtime_dir=tmp_path, inbound={"mailgun": 7}, mail=rules)
    off: Any = make_provider(settings, "one", FakeClock(), state_dir=None, environ={"A": "b"})
    assert off.context.inbound == {}
    listening = replace(settings, webhook=Webhook(listen="127.0.0.1:0", secret=SECRET, trust_relay=True))
    made: Any = make_provider(listening, "one", FakeClock(), state_dir=None, environ={"A": "b"})
    context = made.context
    assert (context.inbound, context.mail, context.trust_relay) == ({"mailgun": 7}, rules, True)
    assert context.read_secret(str(secret)) == "hunter2"
    assert context.environ == {"A": "b"}
    assert context.is_clock_synced() in {True, False, None}
    secret.chmod(0o644)
    with pytest.raises(ConfigError, match="chmod 600"):
        context.read_secret(str(secret))


def test_secret_without_a_listener_is_not_read(tmp_path: Path) -> None:
    """A webhook that is off cannot keep a daemon from starting."""
    settings = Settings(runtime_dir=tmp_path, webhook=Webhook(secret="none"))
    make_provider(settings, "aws", FakeClock(), state_dir=None)
    listening = Settings(runtime_dir=tmp_path, webhook=Webhook(listen="127.0.0.1:0", secret="none"))
    with pytest.raises(ConfigError, match="whsec_"):
        make_provider(listening, "aws", FakeClock(), state_dir=None)


@pytest.mark.parametrize(
    ("name", "config", "seconds"),
    [
        ("aws", AwsConfig(), 120.0),
        ("gcp", GcpConfig(), 30.0),
        ("gcp", GcpConfig(notice_seconds=120), 150.0),
        ("azure", None, 30.0),
        ("digitalocean", None, 7200.0),
    ],
)
def test_clouds_name_their_shortest_notice(name: str, config: object, seconds: float, tmp_path: Path) -> None:
    """As their documentation has it; a longer one is never assumed."""
    section = {} if config is None else {name: config}
    settings = Settings(runtime_dir=tmp_path, provider=section)
    made = make_provider(settings, name, FakeClock(), state_dir=None)
    assert isinstance(made, Windowed)
    assert made.window_seconds == seconds


def test_files_have_no_window(tmp_path: Path) -> None:
    """A notice by hand comes with whatever time its author gives."""
    made = make_provider(Settings(runtime_dir=tmp_path), "file", FakeClock(), state_dir=None)
    assert not isinstance(made, Windowed)
