# SPDX-License-Identifier: Apache-2.0
"""`spotwatch mail post`: what it sends, and which exit status a mail server gets for each answer.

That a real mail server understands them is tested in tests/real.
"""

from __future__ import annotations

import asyncio
import base64
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from spotwatch.cli.mail.post import PATH, command
from spotwatch.mail.model import MAX_MAIL_BYTES
from tests.mail.inbound.receiver import Hearer, listening

SECRET = bytes(range(32))
MAIL = b"From: a@example.com\nSubject: 8-bit and more\n\n" + bytes(range(256)) + b"\n.\nFrom me\n"


@dataclass
class Desk:
    """A receiver on loopback, and what one needs to post there."""

    hearer: Hearer
    secret_file: Path

    @property
    def url(self) -> str:
        """Return where it listens."""
        return self.hearer.url

    async def post(self, mail: bytes, *arguments: str, environ: Mapping[str, str] | None = None) -> Result:
        """Run the command beside the receiver."""
        argv = arguments or ("--url", self.url, "--secret-file", str(self.secret_file))
        runner = CliRunner()
        return await asyncio.to_thread(runner.invoke, command, argv, input=mail, env=environ)


def write_secret(path: Path, secret: bytes = SECRET) -> Path:
    """Write a secret file that only we can read."""
    path.write_text("whsec_" + base64.b64encode(secret).decode())
    path.chmod(0o600)
    return path


@pytest.fixture
async def desk(tmp_path: Path) -> AsyncIterator[Desk]:
    """Give a receiver that takes every mail."""
    async with listening(SECRET) as hearer:
        yield Desk(hearer, write_secret(tmp_path / "secret"))


async def test_the_mail_arrives_byte_for_byte(desk: Desk) -> None:
    """Bytes of every value, lone dots and `From ` lines are handed on as they are."""
    result = await desk.post(MAIL)
    assert (result.exit_code, desk.hearer.mails) == (0, [MAIL]), result.output
    assert desk.hearer.heard[0].is_original
    assert "202" in result.output


async def test_the_mark_of_a_mailbox_is_not_part_of_the_mail(desk: Desk) -> None:
    """A pipe that puts `From sender date` above the mail would make it headless."""
    await desk.post(b"From root Sun Nov 29 12:00:00 2026\n" + MAIL)
    assert desk.hearer.mails == [MAIL]


async def test_a_second_attempt_is_known_as_the_same_mail(desk: Desk) -> None:
    """What a mail server tries again has the id of the first time; another mail has another."""
    for mail in (MAIL, MAIL, MAIL + b"x"):
        assert (await desk.post(mail)).exit_code == 0
    first, second, third = (d.replay_id for d in desk.hearer.heard)
    assert first == second != third


@pytest.mark.parametrize(
    ("status", "exit_code"),
    [
        (200, os.EX_OK),
        (202, os.EX_OK),
        (302, os.EX_TEMPFAIL),
        (400, os.EX_DATAERR),
        (401, os.EX_TEMPFAIL),
        (404, os.EX_TEMPFAIL),
        (406, os.EX_DATAERR),
        (408, os.EX_TEMPFAIL),
        (409, os.EX_TEMPFAIL),
        (413, os.EX_DATAERR),
        (429, os.EX_TEMPFAIL),
        (500, os.EX_TEMPFAIL),
        (503, os.EX_TEMPFAIL),
    ],
)
async def test_each_answer_has_its_exit_status(desk: Desk, status: int, exit_code: int) -> None:
    """Only what no repetition makes better is given back to the sender; the rest stays in the queue."""
    desk.hearer.status = status
    result = await desk.post(MAIL)
    assert (result.exit_code, f"answers {status}" in result.output) == (exit_code, True), result.output
    assert len(desk.hearer.heard) == 1


async def test_a_redirect_is_not_followed(desk: Desk) -> None:
    """A mail goes where the operator said, and nowhere else."""
    desk.hearer.status, desk.hearer.headers = 307, {"location": desk.url}
    assert (await desk.post(MAIL)).exit_code == os.EX_TEMPFAIL
    assert len(desk.hearer.heard) == 1


async def test_nobody_there_means_try_again(desk: Desk) -> None:
    """A daemon that is being restarted costs no mail."""
    result = await desk.post(MAIL, "--url", "http://127.0.0.1:1/x", "--secret-file", str(desk.secret_file))
    assert result.exit_code == os.EX_TEMPFAIL
    assert "http://127.0.0.1:1/*** does not answer" in result.output


async def test_a_wrong_secret_means_try_again_and_says_so(desk: Desk, tmp_path: Path) -> None:
    """The mail waits until the operator has mended it."""
    other = write_secret(tmp_path / "other", bytes(range(1, 33)))
    result = await desk.post(MAIL, "--url", desk.url, "--secret-file", str(other))
    assert (result.exit_code, desk.hearer.heard) == (os.EX_TEMPFAIL, [])
    assert "the secret is not the receiver's, or the two clocks" in result.output


@pytest.mark.parametrize("mail", [b"", b"\n\n"], ids=["empty", "blank"])
async def test_what_is_no_mail_is_not_posted(desk: Desk, mail: bytes) -> None:
    """An empty standard input is an error that no repetition mends."""
    result = await desk.post(mail)
    assert (result.exit_code, desk.hearer.heard) == (os.EX_DATAERR, [])


async def test_the_largest_mail_is_posted(desk: Desk) -> None:
    """What a receiver reads, it also gets."""
    assert (await desk.post(b"A: b\n\n" + b"x" * (MAX_MAIL_BYTES - 6))).exit_code == 0


async def test_of_a_larger_mail_the_beginning_is_posted(desk: Desk) -> None:
    """One byte more than is read of it, so that the receiver knows; it flushes instead of going unheard."""
    mail = MAIL + b"x" * (3 * MAX_MAIL_BYTES)
    for mark in (b"", b"From root Sun Nov 29 12:00:00 2026\n"):
        assert (await desk.post(mark + mail)).exit_code == 0
    assert desk.hearer.mails == [mail[: MAX_MAIL_BYTES + 1]] * 2


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda path: path.chmod(0o644), "chmod 600"),
        (lambda path: path.write_text("secret"), "whsec_"),
        (lambda path: path.write_text(""), "empty"),
        (lambda path: path.unlink(), "cannot be read"),
    ],
    ids=["open to others", "another form", "empty", "missing"],
)
async def test_a_secret_that_cannot_be_used_keeps_the_mail_waiting(
    desk: Desk, change: object, why: str
) -> None:
    """A mistake of the operator's is said, and gives no mail back to its sender."""
    assert callable(change)
    change(desk.secret_file)
    result = await desk.post(MAIL)
    assert (result.exit_code, why in result.output, desk.hearer.heard) == (os.EX_TEMPFAIL, True, [])


@pytest.mark.parametrize("url", ["relay.example.com", "ftp://x/", "http://", "http://[::1", "http://x:y/"])
async def test_an_address_that_is_none_is_said(desk: Desk, url: str) -> None:
    """The address is looked at before anything is sent."""
    result = await desk.post(MAIL, "--url", url, "--secret-file", str(desk.secret_file))
    assert (result.exit_code, "is no address; write it as" in result.output) == (os.EX_TEMPFAIL, True)


async def test_receiver_and_secret_come_from_the_configuration(desk: Desk, tmp_path: Path) -> None:
    """On the Droplet itself nothing need be said twice."""
    listen = desk.url.removeprefix("http://").removesuffix(PATH)
    config = tmp_path / "spotwatch.toml"
    config.write_text(f'[webhook]\nlisten = "{listen}"\nsecret_files = ["{desk.secret_file}"]\n')
    assert (await desk.post(MAIL, "--config", str(config))).exit_code == 0
    config.write_text(
        f'[webhook]\nlisten = "{listen}"\n[inbound.standard]\nsecret_files = ["{desk.secret_file}"]\n'
    )
    assert (await desk.post(MAIL, "--config", str(config))).exit_code == 0
    config.write_text(f'[webhook]\nlisten = "{listen}"\n')
    secret = desk.secret_file.read_text()
    found = await desk.post(MAIL, "--config", str(config), environ={"SPOTWATCH_WEBHOOK__SECRET": secret})
    assert found.exit_code == 0
    lost = await desk.post(MAIL, "--config", str(config))
    assert (lost.exit_code, "--secret-file" in lost.output) == (os.EX_TEMPFAIL, True)


async def test_a_configuration_that_cannot_be_read_keeps_the_mail_waiting(desk: Desk, tmp_path: Path) -> None:
    """A typing error in the file of the daemon costs no mail."""
    config = tmp_path / "spotwatch.toml"
    config.write_text("[webhook\n")
    assert (await desk.post(MAIL, "--config", str(config))).exit_code == os.EX_TEMPFAIL
    config.write_text('[webhook]\nlisten = "9476"\n')
    result = await desk.post(MAIL, "--config", str(config))
    assert (result.exit_code, "webhook.listen" in result.output) == (os.EX_TEMPFAIL, True)


async def test_a_proxy_of_the_environment_is_not_asked_for_loopback(desk: Desk) -> None:
    """A proxy knows nothing of this machine's own addresses."""
    found = await desk.post(
        MAIL, environ={"HTTP_PROXY": "http://127.0.0.1:1", "http_proxy": "http://127.0.0.1:1"}
    )
    assert found.exit_code == 0, found.output


async def test_the_program_itself_hands_a_mail_on(desk: Desk) -> None:
    """As a mail server starts it: bytes on standard input, one line out, exit status 0."""
    argv = [sys.executable, "-m", "spotwatch", "mail", "post", "--url", desk.url]
    done = await asyncio.to_thread(
        subprocess.run,
        [*argv, "--secret-file", str(desk.secret_file)],
        input=MAIL,
        capture_output=True,
        check=False,
    )
    assert (done.returncode, done.stderr, desk.hearer.mails) == (0, b"", [MAIL])


@pytest.mark.parametrize("streams", ["<&-", "<&- 2>&-", "<&- 2>/dev/full"])
async def test_without_standard_input_the_mail_waits(desk: Desk, streams: str) -> None:
    """However it was started, and whether or not anybody reads why: nothing is given back to the sender."""
    assert await _by_shell(desk, streams) == os.EX_TEMPFAIL
    assert desk.hearer.mails == []


@pytest.mark.parametrize("streams", [">&-", ">/dev/full", ">&- 2>&-"])
async def test_a_mail_that_was_taken_stays_taken_though_nobody_reads_that(desk: Desk, streams: str) -> None:
    """Else a full disk for the log would make the mail server send it back."""
    assert await _by_shell(desk, streams) == 0
    assert desk.hearer.mails == [MAIL]


@pytest.mark.parametrize("error", [RuntimeError("\x1b[2J"), MemoryError(), KeyboardInterrupt()])
async def test_what_nobody_thought_of_keeps_the_mail_waiting(
    desk: Desk, monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    """Any exit status but 75 gives it back to its sender."""

    def fail(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr("requests.Session.request", fail)
    result = await desk.post(MAIL)
    assert (result.exit_code, type(error).__name__ in result.output) == (os.EX_TEMPFAIL, True)
    assert "\x1b" not in result.output


async def _by_shell(desk: Desk, streams: str) -> int:
    """Return the exit status of the program itself, started with these streams."""
    line = f'"$0" -m spotwatch mail post --url "$1" --secret-file "$2" {streams}'
    argv = ["sh", "-c", line, sys.executable, desk.url, str(desk.secret_file)]
    done = await asyncio.to_thread(subprocess.run, argv, input=MAIL, capture_output=True, check=False)
    return done.returncode
