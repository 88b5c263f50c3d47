# SPDX-License-Identifier: Apache-2.0
"""The file of letters on their way: what is damaged, foreign or old in it, and who may read it."""

from __future__ import annotations

import asyncio
import json
import os
import threading
from collections.abc import Mapping
from pathlib import Path

import pytest

from spotwatch.clock import SystemClock
from spotwatch.mail.mailbox import Address, Letter
from spotwatch.relay import outbox as outbox_module
from spotwatch.relay.outbox import FILE, Outbox
from spotwatch.testing import run_virtual
from tests.mail.letters import letter
from tests.relay.posting import PlayedMailbox, outbox_to


def test_what_has_expired_is_not_written(tmp_path: Path) -> None:
    """After eight hours without a mailbox a letter says nothing any more."""

    async def main() -> None:
        mailbox = PlayedMailbox()
        outbox = outbox_to(mailbox, tmp_path)
        await outbox.post([letter()])
        await asyncio.sleep(8.1 * 3600)
        await outbox.send()
        assert (mailbox.held, len(outbox)) == ({}, 0)

    run_virtual(main())


@pytest.mark.parametrize(
    "body", [b"", b"{", b"[]", b'{"version": 1}', b'{"version": 2}', b'{"version": 2, "letters": [5]}']
)
def test_a_damaged_file_is_said(tmp_path: Path, body: bytes) -> None:
    """A relay starts all the same, tells that letters of before are lost, and keeps what is there of them."""
    (tmp_path / FILE).write_bytes(body)

    async def main() -> None:
        outbox = outbox_to(PlayedMailbox(), tmp_path)
        assert len(outbox) == 0
        assert "unreadable" in outbox.disk_problem
        assert await outbox.post([letter()])
        assert outbox.disk_problem == ""

    run_virtual(main())
    assert (tmp_path / f"{FILE}.unreadable").read_bytes() == body


def test_one_damaged_letter_does_not_take_the_others_with_it(tmp_path: Path) -> None:
    """What can be read of the file waits on, and the file is not gone either."""

    async def main() -> None:
        await outbox_to(PlayedMailbox(), tmp_path).post([letter(), letter(to=Address(7))])
        found = json.loads((tmp_path / FILE).read_bytes())
        found["letters"][0]["event"] = "explode"
        (tmp_path / FILE).write_text(json.dumps(found))
        mailbox = PlayedMailbox()
        outbox = outbox_to(mailbox, tmp_path)
        assert "explode" in outbox.disk_problem
        assert (tmp_path / FILE).exists()
        await outbox.send()
        assert set(mailbox.held) == {Address(7)}
        assert outbox.disk_problem == ""

    run_virtual(main())


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
def test_nobody_slips_a_letter_into_the_file(tmp_path: Path) -> None:
    """What somebody else has put in its place is not believed."""

    async def main() -> None:
        await outbox_to(PlayedMailbox(), tmp_path).post([letter()])
        os.chown(tmp_path / FILE, 12345, -1)
        outbox = outbox_to(PlayedMailbox(), tmp_path)
        assert len(outbox) == 0
        assert "user 12345" in outbox.disk_problem

    run_virtual(main())


def test_the_file_is_readable_by_us_alone(tmp_path: Path) -> None:
    """It names Droplets."""

    async def main() -> None:
        await outbox_to(PlayedMailbox(), tmp_path).post([letter()])

    run_virtual(main())
    assert (tmp_path / FILE).stat().st_mode & 0o777 == 0o600


def test_a_slow_write_that_nobody_waits_for_is_not_overtaken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two letters were answered for: both are on disk, though the first request was given up on the way."""
    write, going_on = outbox_module._write, threading.Event()

    def slow_at_first(path: Path, waiting: Mapping[Address, tuple[Letter, ...]]) -> None:
        if len(waiting) == 1:
            going_on.wait(10)
        write(path, waiting)

    monkeypatch.setattr(outbox_module, "_write", slow_at_first)

    async def main() -> None:
        outbox = Outbox(PlayedMailbox(), SystemClock(), state_dir=tmp_path)
        now = SystemClock().now()
        first = asyncio.create_task(outbox.post([letter(to=Address(1), issued_at=now)]))
        await asyncio.sleep(0.05)
        first.cancel()
        second = asyncio.create_task(outbox.post([letter(to=Address(2), issued_at=now)]))
        await asyncio.sleep(0.05)
        assert not second.done()
        going_on.set()
        assert await second
        assert len(Outbox(PlayedMailbox(), SystemClock(), state_dir=tmp_path)) == 2

    asyncio.run(main())
