# SPDX-License-Identifier: Apache-2.0
"""What `check` says about mail: nothing where there is none, and how to mend what makes it worth less."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from spotwatch.checks import Finding, Result
from spotwatch.emulator import Emulator
from spotwatch.mail.mailbox import HEARTBEAT_KEY, Heartbeat
from spotwatch.mail.mailbox_form import write_heartbeat
from tests.checks.bench import Bench, free_port, named
from tests.mail import name_server
from tests.mail.letters import KEY
from tests.mail.making import ACCOUNT, SIGNER, zone


def mail_lines(findings: list[Finding]) -> dict[str, Finding]:
    """Return the lines about mail by name."""
    return {line.name: line for line in findings if line.name.startswith("mail.")}


def secret(home: Path, text: str = "key-0123456789abcdef") -> Path:
    """Return a secret file."""
    path = home / "mailgun.key"
    path.write_text(text)
    path.chmod(0o600)
    return path


def configured(bench: Bench, resolver: str, more: str = "") -> str:
    """Return a configuration that hears mail by Mailgun."""
    return (
        f'[webhook]\nlisten = "127.0.0.1:{free_port()}"\n'
        f'[inbound.mailgun]\nsigning_key_files = ["{secret(bench.home)}"]\n'
        f'[mail]\nresolvers = ["{resolver}"]\n{more}'
    )


async def test_without_mail_there_is_no_line(bench: Bench) -> None:
    """Other clouds' users are not told of it."""
    assert mail_lines(await bench.check()) == {}


async def test_all_is_well(bench: Bench) -> None:
    """Services, addresses, names and DNS, each with what was found."""
    async with name_server.serving(zone(SIGNER.records)) as server:
        more = f'account_addresses = ["{ACCOUNT}"]\n[provider.digitalocean]\nnames = ["spot-1"]\n'
        lines = mail_lines(await bench.check(configured(bench, server.address, more)))
    assert {name: line.result for name, line in lines.items()} == dict.fromkeys(
        ("mail.services", "mail.account_addresses", "mail.names", "mail.dns"), Result.OK
    )
    assert "mailgun" in lines["mail.services"].found
    assert server.asked


async def test_what_makes_mail_worth_less_is_a_warning(bench: Bench) -> None:
    """No address, no name, no DNS: each says that mail can only flush, and the setting that mends it."""
    lines = mail_lines(await bench.check(configured(bench, "127.0.0.1:1")))
    for name, setting in (
        ("mail.account_addresses", "DigitalOcean"),
        ("mail.names", "provider.digitalocean.names"),
        ("mail.dns", "mail.resolvers"),
    ):
        assert lines[name].result is Result.WARN
        assert "flush" in lines[name].found
        assert setting in lines[name].mend
    assert not any(line.result is Result.FAIL for line in lines.values())


async def test_a_trusted_relay_is_a_warning(bench: Bench) -> None:
    """Whoever writes to the mailbox can then stop the trainer, and the line says so."""
    good = configured(bench, "127.0.0.1:1")
    assert named(await bench.check(good), "webhook.trust_relay") == []
    trusting = good.replace("[inbound.mailgun]", "trust_relay = true\n[inbound.mailgun]")
    [line] = named(await bench.check(trusting), "webhook.trust_relay")
    assert (line.result, "without DKIM" in line.found, "DMARC" in line.mend) == (Result.WARN, True, True)


@pytest.mark.hostile(16)
async def test_a_service_that_cannot_be_heard_is_a_failure(bench: Bench) -> None:
    """An empty secret, a pattern that is none, and a listener that is off."""
    good = configured(bench, "127.0.0.1:1")
    secret(bench.home, "\n")
    empty = mail_lines(await bench.check(good))["mail.services"]
    assert (empty.result, "mailgun.key" in empty.found) == (Result.FAIL, True)
    secret(bench.home)
    patterns = bench.home / "patterns.toml"
    patterns.write_text("nonsense = 1\n")
    wrong = mail_lines(await bench.check(f'{good}patterns_file = "{patterns}"\n'))["mail.services"]
    assert (wrong.result, "patterns.toml" in wrong.found) == (Result.FAIL, True)
    off = good.replace('listen = "127.0.0.1', 'listen = "" # "127.0.0.1')
    assert "webhook.listen" in mail_lines(await bench.check(off))["mail.services"].found


async def test_the_extra_that_is_missing_is_named(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the command that installs it, and nothing that would need it is asked."""
    monkeypatch.setitem(sys.modules, "dkim", None)
    lines = mail_lines(await bench.check(configured(bench, "127.0.0.1:1")))
    assert list(lines) == ["mail.extra"]
    assert lines["mail.extra"].result is Result.FAIL
    assert "pip install 'spotwatch[mail]'" in lines["mail.extra"].mend


@pytest.mark.parametrize(("has_heartbeat", "wanted"), [(True, Result.OK), (False, Result.FAIL)])
async def test_the_mailbox_is_read_and_the_relay_must_live(
    bench: Bench, has_heartbeat: bool, wanted: Result
) -> None:
    """A mailbox without a fresh sign of life is one where no letter would arrive."""
    path = bench.home / "mailbox" / HEARTBEAT_KEY
    path.parent.mkdir(parents=True)
    if has_heartbeat:
        path.write_bytes(write_heartbeat(Heartbeat(at=bench.now, interval_seconds=60.0), KEY))
    async with Emulator("digitalocean") as cloud:
        toml = (
            f'providers = ["digitalocean"]\n[provider.digitalocean]\nendpoint = "{cloud.base_url}"\n'
            f'mailbox = "file://{bench.home / "mailbox"}"\nmailbox_keys = ["{KEY.public.text}"]\n'
        )
        findings = await bench.check(toml)
    [line] = named(findings, "signal.digitalocean.mailbox")
    assert line.result is wanted
    assert named(findings, "signal.digitalocean.webhook") == []
