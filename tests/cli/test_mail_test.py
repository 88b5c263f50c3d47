# SPDX-License-Identifier: Apache-2.0
"""`spotwatch mail test`: what it says, and its exit status for each kind of mail."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from spotwatch.cli.mail.group import command
from spotwatch.cli.mail.test import UNKNOWN_ID, _Given, _judge
from spotwatch.config import Mail, Settings
from spotwatch.model import Evidence
from tests.mail import name_server
from tests.mail.making import ACCOUNT, OURS, SIGNER, forged, genuine, plain, zone

NOW = datetime.now(UTC)
NAMELESS = _Given(droplet_id=None, names=(), addresses=())


def ask(*arguments: str, mail: bytes | None = None) -> Result:
    """Run the command, with a mail on standard input if there is one."""
    return CliRunner().invoke(command, ["test", *arguments], input=mail)


@pytest.fixture
def nowhere(tmp_path: Path) -> str:
    """Return a configuration whose metadata service does not answer."""
    path = tmp_path / "spotwatch.toml"
    path.write_text('[provider.digitalocean]\nendpoint = "http://127.0.0.1:1"\n')
    return str(path)


@pytest.mark.parametrize(
    ("arguments", "status", "wanted"),
    [
        (("--droplet-id", str(OURS)), 0, "flush"),
        (("--name", "spot-trainer-01"), 0, "flush"),
        (("--droplet-id", str(OURS + 1), "--name", "else-7"), 1, "nothing"),
        (("--name", "spot-trainer-010"), 1, "nothing"),
        ((), 0, "flush"),
    ],
)
def test_whom_it_is_asked_for(nowhere: str, arguments: tuple[str, ...], status: int, wanted: str) -> None:
    """The command line names the Droplet; for nobody in particular a mail may still flush."""
    result = ask("-", "--config", nowhere, "--no-dns", *arguments, mail=plain(sent_at=NOW))
    assert result.exit_code == status, result.output
    assert wanted in result.output
    assert ("is not known" in result.output) == ("--droplet-id" not in arguments)


def test_a_file_with_a_mailbox_line_is_read(tmp_path: Path) -> None:
    """What a mail program saves begins with a line that is no header."""
    path = tmp_path / "a.eml"
    path.write_bytes(b"From support@digitalocean.com Sun Nov 29\n" + plain(sent_at=NOW))
    assert ask(str(path), "--no-dns", "--droplet-id", str(OURS)).exit_code == 0


def test_one_document_as_json() -> None:
    """Every field of the judgement, times in RFC 3339."""
    result = ask("-", "--json", "--no-dns", "--droplet-id", str(OURS), mail=plain(sent_at=NOW))
    document = json.loads(result.stdout)
    [row] = document["judgements"]
    assert (document["version"], document["notes"]) == (1, [])
    assert (row["event"], row["evidence"], row["droplet_id"]) == ("reclaim", "weak", OURS)
    assert row["at"].endswith("Z")
    assert row["message_key"] == "<one@digitalocean.com>"
    assert row["lines"]


@pytest.mark.parametrize("mail", [b"", b"hello\n", b"\x00" * 1000, b"x" * 400_000])
def test_what_is_no_mail_does_nothing(mail: bytes) -> None:
    """It is said, and no traceback."""
    result = ask("-", "--no-dns", "--droplet-id", "7", mail=mail)
    assert result.exit_code == 1
    assert result.output.strip()
    assert result.exception is None or isinstance(result.exception, SystemExit)


@pytest.mark.parametrize(
    "arguments", [("missing.eml",), ("-", "--droplet-id", "0"), ("-", "--address", "somewhere"), ()]
)
def test_wrong_usage_is_status_2(arguments: tuple[str, ...]) -> None:
    """A file that is not there is usage as well."""
    assert ask(*arguments, mail=b"").exit_code == 2


@pytest.mark.hostile(56)
def test_nothing_in_a_mail_steers_the_terminal() -> None:
    """Escapes, line ends and direction marks are shown, not obeyed."""
    mail = plain(sent_at=NOW, message_id="<\x1b[2J\u202e{{x}}%s@digitalocean.com>")
    result = ask("-", "--no-dns", "--droplet-id", str(OURS), mail=mail)
    assert all(c.isprintable() or c == "\n" for c in result.output)
    assert max(map(len, result.output.splitlines())) < 600


def test_a_pipe_by_name_is_not_waited_for(tmp_path: Path) -> None:
    """Nobody may ever write into it; the way for a pipe is said."""
    path = tmp_path / "pipe"
    os.mkfifo(path)
    result = ask(str(path), "--no-dns")
    assert result.exit_code == 2
    assert "is given as -" in result.output
    assert ask("/dev/zero", "--no-dns").exit_code == 2
    assert "No such file" in ask(str(tmp_path / "none"), "--no-dns").output


@pytest.mark.parametrize(("make", "wanted"), [(genuine, Evidence.STRONG), (forged, Evidence.WEAK)])
async def test_the_key_is_asked_of_dns(make: object, wanted: Evidence) -> None:
    """A genuine mail may stop the trainer, a forged one is told apart, and each proof is said."""
    assert callable(make)
    now = datetime.now(UTC)
    raw = make(sent_at=now.replace(microsecond=0) - timedelta(minutes=1))
    async with name_server.serving(zone(SIGNER.records)) as server:
        rules = Mail(account_addresses=(ACCOUNT,), resolvers=(server.address,))
        given = _Given(droplet_id=OURS, names=(), addresses=())
        [judgement], notes = await _judge(raw, Settings(mail=rules), given, has_dns=True)
    assert server.asked
    assert (judgement.event, judgement.evidence, notes) == ("reclaim", wanted, ())
    assert any("digitalocean.com" in line for line in judgement.lines)


async def test_a_droplet_known_by_name_only_has_a_number_that_no_mail_has() -> None:
    """It is said what stands for it."""
    given = _Given(droplet_id=None, names=("Spot-Trainer-01",), addresses=())
    settings = Settings()
    [judgement], [note] = await _judge(plain(sent_at=NOW), settings, given, has_dns=False)
    assert judgement.droplet is not None
    assert judgement.droplet.droplet_id == UNKNOWN_ID
    assert str(UNKNOWN_ID) in note


def test_without_standard_input_it_says_so() -> None:
    """A closed one is wrong usage, and no traceback."""
    argv = ["sh", "-c", '"$0" -m spotwatch mail test - <&-', sys.executable]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert (done.returncode, "standard input is closed" in done.stderr) == (2, True), done.stderr
    assert "Traceback" not in done.stderr
