# SPDX-License-Identifier: Apache-2.0
"""A relay whose disk has become read-only: what it has promised is sent all the same."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path

import pytest

from spotwatch.clock import SystemClock
from spotwatch.mail.mailbox_form import read_letters
from tests.mail.letters import KEY, OURS
from tests.real.conftest import _require
from tests.relay.home import HERE, Home, notify, running, until

pytestmark = [pytest.mark.real, pytest.mark.timeout(120)]


_SCRIPT = """
mount --bind "$1" "$1" && mount -o remount,bind,ro "$1" && exec "$2" -m spotwatch relay --once --config "$3"
"""


def _once(home: Home) -> subprocess.CompletedProcess[str]:
    """Run the relay once, its state on a file system that is read-only for it alone."""
    argv = ["unshare", "--mount", "sh", "-c", _SCRIPT, "sh", str(home.state_dir), sys.executable]
    return subprocess.run([*argv, str(home.config)], capture_output=True, text=True, timeout=60, check=False)


async def test_promised_letters_are_sent(tmp_path: Path) -> None:
    """The mailbox is away, the sender is answered, the disk fails, the relay restarts: the letter arrives."""
    _require("unshare", "mount")
    home = Home(tmp_path)
    home.box.write_text("not a directory")
    relay = home.open()
    async with running(relay):
        await until(lambda: relay.webhook.is_bound)
        assert await notify(relay.webhook.port, {"event": "reclaim", "droplet_id": OURS}) == 202
    home.box.unlink()
    done = await asyncio.to_thread(_once, home)
    assert "is not writable" in done.stderr
    raw = (home.box / HERE.key).read_bytes()
    opened = read_letters(raw, [KEY.public], to=HERE, now=SystemClock().now())
    assert [str(one.evidence) for one in opened.letters] == ["strong"]
    # The letter is out, and the disk is still to be mended.
    assert done.returncode == 1, done
