# SPDX-License-Identifier: Apache-2.0
"""The user's own commands: what they are told, what is kept of their words, and how they are ended."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import sys
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

from spotwatch.actions.hook import MAX_OUTPUT_BYTES, HookTeller
from spotwatch.config import Hook
from spotwatch.errors import ActionError
from spotwatch.model import Kind, Notice
from tests.families import wait_for
from tests.leaks import open_descriptors

NOTICE = Notice(
    id="i-1",
    provider="aws",
    signal="instance-action",
    kind=Kind.RECLAIM,
    seen_at=datetime(2026, 11, 29, 12, 0, tzinfo=UTC),
    detail='terminate; "now" $(rm)',
)


@pytest.fixture(autouse=True)
def no_descriptor_left() -> Iterator[None]:
    """Fail a test that leaves a pipe or a handle open."""
    before = open_descriptors()
    yield
    assert not open_descriptors() - before


def python(code: str, *arguments: str) -> tuple[str, ...]:
    """Return a command that runs `code`."""
    return (sys.executable, "-c", code, *arguments)


def read(path: Path) -> str:
    """Return a file's text, empty while there is none."""
    return path.read_text() if path.exists() else ""


def is_running(pid: str) -> bool:
    """Tell whether a process runs and is no zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


async def test_a_hook_is_told_in_its_environment(tmp_path: Path) -> None:
    """Occasion, notice and facts, our environment, and none of our secrets."""
    out = tmp_path / "out"
    argv = python("import json, os, sys; json.dump(dict(os.environ), open(sys.argv[1], 'w'))", str(out))
    environ = {"PATH": "/bin", "SPOTWATCH_WEBHOOK__SECRET": "whsec_x", "SPOTWATCH_RUN_ID": "r-1"}
    teller = HookTeller(Hook(on_saved=argv, on_notice=("true",)), environ)
    assert teller.name == "hook"
    assert teller.occasions == {"saved", "notice"}
    said = await teller.tell("saved", NOTICE, {"step": 7, "deadline": NOTICE.seen_at})
    assert said == f"hook on_saved: {sys.executable!r} done"
    seen = json.loads(read(out))
    assert seen["SPOTWATCH_OCCASION"] == "saved"
    assert Notice.from_json(json.loads(seen["SPOTWATCH_NOTICE"])) == NOTICE
    assert json.loads(seen["SPOTWATCH_FACTS"])["step"] == 7
    assert (seen["SPOTWATCH_RUN_ID"], seen["PATH"]) == ("r-1", "/bin")
    assert "SPOTWATCH_WEBHOOK__SECRET" not in seen


async def test_no_shell_reads_the_arguments() -> None:
    """What looks like a command stays a word."""
    said = await HookTeller(Hook(on_notice=("echo", "$HOME; `id`", "*"))).tell("notice", NOTICE, {})
    assert said == "hook on_notice: 'echo' done: $HOME; `id` *"


async def test_an_occasion_without_a_command_does_nothing() -> None:
    """Withdrawal has none at all."""
    teller = HookTeller(Hook())
    assert teller.occasions == frozenset()
    assert await teller.tell("missed", NOTICE, {}) == ""
    assert await teller.tell("withdrawn", NOTICE, {}) == ""


async def test_what_it_prints_is_capped_and_never_blocks_it() -> None:
    """Ten megabytes are read and dropped but for their beginning; errors are among the words."""
    code = "import sys; sys.stderr.write('first '); sys.stderr.flush(); print('x' * 10**7)"
    said = await HookTeller(Hook(on_notice=python(code))).tell("notice", NOTICE, {})
    assert ": first xxx" in said
    assert MAX_OUTPUT_BYTES <= len(said) < MAX_OUTPUT_BYTES + 200


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (("/no/such/hook",), "'/no/such/hook' cannot be started: No such file"),
        (("/",), "cannot be started: Permission denied"),
        (("a\0b",), "cannot be started: embedded null byte"),
        (python("print('broken'); raise SystemExit(3)"), "ended with status 3: broken"),
        (python("import os; os.kill(os.getpid(), 11)"), f"ended with status {128 + signal.SIGSEGV}"),
    ],
)
async def test_a_hook_that_fails_is_an_error(argv: tuple[str, ...], message: str) -> None:
    """With its last words; nothing else changes."""
    with pytest.raises(ActionError, match=message):
        await HookTeller(Hook(on_missed=argv)).tell("missed", NOTICE, {})


async def test_past_its_limit_a_hook_is_ended_with_all_it_started(tmp_path: Path) -> None:
    """Asked first, then made to; also what ignores SIGTERM in its group."""
    out = tmp_path / "pids"
    line = f"trap '' TERM; sleep 60 & echo $$ $! > {out}; echo working; wait"
    hook = Hook(on_notice=("sh", "-c", line), on_notice_timeout_seconds=1.5)
    began = time.monotonic()
    with pytest.raises(ActionError, match=r"ran past 1.5 s and was ended: working"):
        await HookTeller(hook).tell("notice", NOTICE, {})
    assert time.monotonic() - began < 15
    pids = read(out).split()
    assert len(pids) == 2
    wait_for(lambda: not any(is_running(pid) for pid in pids))


async def test_what_a_hook_leaves_in_the_background_holds_nobody_up(tmp_path: Path) -> None:
    """Its end counts, not that of whoever still holds its output."""
    out = tmp_path / "pid"
    began = time.monotonic()
    line = f"sleep 60 & echo $! > {out}; echo started"
    said = await HookTeller(Hook(on_survived=("sh", "-c", line))).tell("survived", NOTICE, {})
    assert time.monotonic() - began < 15
    assert said.endswith("done: started")
    pid = read(out).strip()
    assert is_running(pid)
    os.kill(int(pid), signal.SIGKILL)


async def test_a_hook_does_not_outlive_us(tmp_path: Path) -> None:
    """When the daemon ends, its hooks do."""
    out = tmp_path / "pid"
    argv = python(
        "import os, sys, time; open(sys.argv[1], 'w').write(str(os.getpid())); time.sleep(60)", str(out)
    )
    telling = asyncio.create_task(HookTeller(Hook(on_notice=argv)).tell("notice", NOTICE, {}))
    async with asyncio.timeout(10):
        while not read(out):  # noqa: ASYNC110 - a file cannot be awaited
            await asyncio.sleep(0.01)
    telling.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await telling
    assert telling.cancelled()
    assert not is_running(read(out))
