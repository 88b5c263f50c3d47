# SPDX-License-Identifier: Apache-2.0
"""Every mistake that `check` knows: made for real, found by its own line, mended by its own advice.

What clouds do wrong is in test_clouds; what takes another user is in test_flag.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from spotwatch.checks import Result, has_failed
from spotwatch.handshake import Saved
from tests.checks.bench import Bench, free_port, named

Arrange = Callable[[Bench], str]
"""Make the mistake, and return the configuration."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Mistake:
    """One mistake, and the line that tells of it."""

    label: str
    arrange: Arrange
    name: str
    result: Result
    found: str
    mend: str


def mistake(label: str, arrange: Arrange | str, name: str, result: str, found: str, mend: str) -> Mistake:
    """Return a mistake; a text is a configuration."""

    def constant(_: Bench) -> str:
        return str(arrange)

    return Mistake(
        label=label,
        arrange=constant if isinstance(arrange, str) else arrange,
        name=name,
        result=Result(result),
        found=found,
        mend=mend,
    )


def pidfile_of_nobody(bench: Bench) -> str:
    """Name a pid that cannot run."""
    path = bench.home / "trainer.pid"
    path.write_text(f"{2**22}\n")
    return f'[[target]]\npidfile = "{path}"\n'


def two_trainers(bench: Bench) -> str:
    """Start two processes that one pattern fits."""
    for _ in range(2):
        bench.family.start(bench.family.trainer(), trainers=1)
    return f"[[target]]\nprocess = '{bench.family.pattern}'\n"


def unknown_unit(bench: Bench) -> str:
    """Name a unit that systemd does not know."""
    bench.systemd({})
    return '[[target]]\nunit = "trian"\n'


def unit(**changes: object) -> Arrange:
    """Give the trainer's unit a bad setting."""
    return lambda bench: bench.unit(**changes)


def unit_with_flag_in_tmp(bench: Bench) -> str:
    """Put the flag where the unit cannot see it."""
    return '[flag]\npath = "/tmp/checkpoint-now-of-a-test"\n' + bench.unit(PrivateTmp="yes")


def elsewhere(bench: Bench) -> str:
    """Tell the trainer another directory."""
    env = {"SPOTWATCH_RUNTIME_DIR": "/run/elsewhere"}
    bench.family.start(bench.family.trainer(), trainers=1, env=env)
    return f"[[target]]\nprocess = '{bench.family.pattern}'\n"


def report(**fields: Any) -> Arrange:
    """Have a trainer report something bad."""

    def arrange(bench: Bench) -> str:
        bench.report(**fields)
        return ""

    return arrange


def half_a_report(bench: Bench) -> str:
    """Leave half a status."""
    (bench.runtime_dir / "status" / "run-1.json").write_text('{"version": 1, "pid"')
    return ""


def mode(name: str, bits: int) -> Arrange:
    """Open a directory to everyone."""

    def arrange(bench: Bench) -> str:
        (bench.runtime_dir / name).chmod(bits)
        return ""

    return arrange


def linked_runtime_dir(bench: Bench) -> str:
    """Make the runtime directory a link."""
    link = bench.home / "link"
    link.symlink_to(bench.runtime_dir)
    return f'runtime_dir = "{link}"\n'


def file_as_runtime_dir(bench: Bench) -> str:
    """Put a file where the runtime directory should be."""
    path = bench.home / "file"
    path.touch()
    return f'runtime_dir = "{path}"\n'


def file_as_state_dir(bench: Bench) -> str:
    """Put a file where the state directory should be."""
    bench.state_dir.touch()
    return ""


def torn_journal(bench: Bench) -> str:
    """Leave a journal that cannot be read."""
    bench.state_dir.mkdir()
    (bench.state_dir / "journal.jsonl").write_text("half a li\n")
    return ""


def flag_is(make: Callable[[Path], object]) -> Arrange:
    """Put something at the flag's own path."""

    def arrange(bench: Bench) -> str:
        make(bench.runtime_dir / "checkpoint-now")
        return ""

    return arrange


def lock_is_a_directory(bench: Bench) -> str:
    """Put a directory in the place of the lock."""
    (bench.runtime_dir / "daemon.lock").mkdir()
    return ""


def installed(**changes: object) -> Arrange:
    """Install the daemon's unit."""

    def arrange(bench: Bench) -> str:
        bench.systemd({"spotwatch.service": changes})
        return ""

    return arrange


def installed_with_flag_in_tmp(bench: Bench) -> str:
    """Give the daemon a /tmp of its own, and the flag to it."""
    bench.systemd({"spotwatch.service": {"PrivateTmp": "yes"}})
    return '[flag]\npath = "/tmp/checkpoint-now-of-a-test"\n'


def port_taken(section: str) -> Arrange:
    """Have somebody else listen."""

    def arrange(bench: Bench) -> str:
        other = socket.create_server(("127.0.0.1", 0))
        bench.kept.append(other)
        listen = f'listen = "127.0.0.1:{other.getsockname()[1]}"\n'
        return f"[{section}]\n{listen}" + (secret(bench) if section == "webhook" else "")

    return arrange


def secret(bench: Bench, text: str = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw") -> str:
    """Write a webhook's secret, and return its setting."""
    path = bench.home / "secret"
    path.write_text(text)
    path.chmod(0o600)
    return f'secret_files = ["{path}"]\n'


def webhook(text: str = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw") -> Arrange:
    """Listen for pushes, with this secret."""
    return lambda bench: f'[webhook]\nlisten = "127.0.0.1:{free_port()}"\n{secret(bench, text)}'


def announce_without_address(bench: Bench) -> str:
    """Have a file that should hold a receiver's address and does not."""
    path = bench.home / "slack"
    path.write_text("xoxb-secret-words")
    path.chmod(0o600)
    return f'[[announce]]\nsecret_file = "{path}"\n'


def order_of(boot_id: str | None) -> Arrange:
    """Leave a stop; None: of this boot."""

    def arrange(bench: Bench) -> str:
        bench.order(bench.boot_id if boot_id is None else boot_id)
        return ""

    return arrange


def half_an_order(bench: Bench) -> str:
    """Leave half an order."""
    (bench.runtime_dir / "order.json").write_text('{"version": 1, "boot')
    return ""


def draining_of(boot_id: str | None) -> Arrange:
    """Leave a stop in force; None: of this boot."""

    def arrange(bench: Bench) -> str:
        named = bench.boot_id if boot_id is None else boot_id
        (bench.runtime_dir / "draining").write_text(f'{{"version": 1, "boot_id": "{named}", "seq": 7}}')
        return ""

    return arrange


MISTAKES = (
    mistake(
        "daemon's tmp",
        installed_with_flag_in_tmp,
        "daemon.PrivateTmp",
        "fail",
        "nobody else would see",
        "in the daemon's unit",
    ),
    mistake(
        "old end",
        '[policy]\nends_at = "2026-01-01T00:00:00Z"\n',
        "ends_at",
        "fail",
        "has passed",
        "set the coming one",
    ),
    mistake("no target", "", "target", "warn", "none is configured", "name the trainer in a [[target]]"),
    mistake(
        "no match",
        '[[target]]\nprocess = "no such trainer anywhere"\n',
        "target",
        "fail",
        "no process matches",
        "mend target.process",
    ),
    mistake("dead pid", pidfile_of_nobody, "target", "fail", "which does not run", "write its pid"),
    mistake("no unit", unknown_unit, "target", "fail", "not-found", "systemctl status trian"),
    mistake("two match", two_trainers, "target", "warn", "2 processes match", "make target.process longer"),
    mistake(
        "short limit",
        unit(TimeoutStopUSec="10s"),
        "unit.TimeoutStopSec",
        "fail",
        "10 s; a save may take 30 s",
        "set TimeoutStopSec=90",
    ),
    mistake(
        "scant limit",
        unit(TimeoutStopUSec="40s"),
        "unit.TimeoutStopSec",
        "warn",
        "40 s; a save may take 30 s",
        "set TimeoutStopSec=90",
    ),
    mistake(
        "whole group",
        unit(KillMode="control-group"),
        "unit.KillMode",
        "warn",
        "also kills DataLoader's workers",
        "set KillMode=mixed",
    ),
    mistake(
        "kills nobody", unit(KillMode="none"), "unit.KillMode", "fail", "tells nobody", "set KillMode=mixed"
    ),
    mistake(
        "SIGKILL",
        unit(KillSignal="9"),
        "unit.KillSignal",
        "fail",
        "nobody can save on",
        "set KillSignal=SIGTERM",
    ),
    mistake(
        "no restart",
        unit(Restart="no"),
        "unit.Restart",
        "warn",
        "a crash is not mended",
        "set Restart=on-failure",
    ),
    mistake(
        "restart after 77",
        unit(RestartPreventExitStatus=""),
        "unit.Restart",
        "warn",
        "two machines",
        "set RestartPreventExitStatus=77",
    ),
    mistake(
        "75 is failure",
        unit(SuccessExitStatus=""),
        "unit.Restart",
        "warn",
        "counts as a failure",
        "set SuccessExitStatus=75",
    ),
    mistake(
        "private tmp",
        unit_with_flag_in_tmp,
        "unit.PrivateTmp",
        "fail",
        "has a /tmp of its own",
        "PrivateTmp=no",
    ),
    mistake("elsewhere", elsewhere, "flag.seen", "fail", "looks in /run/elsewhere", "set both to the same"),
    mistake(
        "gone trainer",
        report(age_seconds=300),
        "trainer",
        "fail",
        "gone or hangs",
        "see whether it still runs",
    ),
    mistake(
        "failed save",
        report(error="AccessDenied: no"),
        "trainer",
        "fail",
        "its last save failed: AccessDenied",
        "credentials",
    ),
    mistake(
        "never saved",
        report(saved=Saved()),
        "trainer",
        "warn",
        "nothing saved yet",
        "spotwatch trigger flush",
    ),
    mistake("half a report", half_a_report, "trainer.refused", "warn", "not JSON", "remove the file"),
    mistake("open to all", mode("", 0o777), "runtime_dir", "fail", "writable by everyone", "chmod o-w"),
    mistake(
        "open notices",
        mode("notices", 0o777),
        "signal.file.notices",
        "fail",
        "writable by everyone",
        "chmod o-w",
    ),
    mistake("a link", linked_runtime_dir, "runtime_dir", "fail", "is a link", "remove it"),
    mistake(
        "a file",
        file_as_runtime_dir,
        "runtime_dir",
        "fail",
        "is not a directory",
        "remove it, or set runtime_dir",
    ),
    mistake("no state", file_as_state_dir, "state_dir", "warn", "memory only", "set state_dir"),
    mistake(
        "torn journal", torn_journal, "journal", "warn", "line cannot be read", "whether the disk is sound"
    ),
    mistake(
        "no folder",
        '[flag]\npath = "/no/such/place/flag"\n',
        "flag.create",
        "fail",
        "there is no directory /no/such/place",
        "make it",
    ),
    mistake("flag blocked", flag_is(Path.mkdir), "flag.pending", "fail", "is no regular file", "remove it"),
    mistake("flag of another", flag_is(Path.touch), "flag.pending", "warn", "not ours", "unless you made it"),
    mistake("bad lock", lock_is_a_directory, "daemon", "fail", "no daemon can start", "remove it"),
    mistake("no daemon", "", "daemon", "warn", "none runs", "spotwatch run"),
    mistake(
        "not started",
        installed(ActiveState="inactive"),
        "daemon",
        "fail",
        "installed but does not run",
        "enable --now spotwatch",
    ),
    mistake(
        "metrics port",
        port_taken("http"),
        "http",
        "warn",
        "does not answer",
        "set http.listen to a free port",
    ),
    mistake("push port", port_taken("webhook"), "webhook", "fail", "cannot listen", "set webhook.listen"),
    mistake(
        "bad secret",
        webhook("hunter2"),
        "webhook.secret",
        "fail",
        "does not begin with whsec_",
        "openssl rand",
    ),
    mistake(
        "loopback push",
        webhook(),
        "webhook.reach",
        "warn",
        "only this machine can push",
        "an address that the sender reaches",
    ),
    mistake(
        "no hook",
        '[hook]\non_saved = ["/no/such/hook"]\n',
        "hook.on_saved",
        "fail",
        "'/no/such/hook' is no command",
        "its full path",
    ),
    mistake(
        "no address", announce_without_address, "announce.0", "fail", "holds no http(s) URL", "mend announce"
    ),
    mistake(
        "bad template",
        '[[announce]]\nurl = "http://127.0.0.1/x"\ntemplate = "$nobody"\n',
        "announce.0",
        "fail",
        "nobody",
        "mend announce",
    ),
    mistake(
        "old order",
        order_of("another"),
        "order",
        "warn",
        "order 7 (stop) of an earlier boot",
        "leave it alone",
    ),
    mistake(
        "order in force",
        order_of(None),
        "order",
        "warn",
        "order 7 (stop) is in force: reclaim",
        "spotwatch status",
    ),
    mistake("half an order", half_an_order, "order", "fail", "cannot be believed", "remove"),
    mistake(
        "old draining",
        draining_of("another"),
        "draining",
        "fail",
        "left over from an earlier boot",
        "start the daemon",
    ),
    mistake(
        "draining alone",
        draining_of(None),
        "draining",
        "fail",
        "no daemon runs that could lift it",
        "start the daemon",
    ),
)


@pytest.mark.parametrize("one", MISTAKES, ids=[one.label for one in MISTAKES])
async def test_mistake_has_its_own_line_and_mend(one: Mistake, bench: Bench) -> None:
    """Whoever made it reads what is wrong and what to do, and the verdict follows from the line."""
    findings = await bench.check(one.arrange(bench))
    lines = named(findings, one.name)
    assert [
        line
        for line in lines
        if line.result is one.result and one.found in line.found and one.mend in line.mend
    ], lines
    assert has_failed(findings) is (one.result is Result.FAIL)


def test_no_two_mistakes_share_a_line() -> None:
    """At least twenty of them are told apart, so that nobody has to guess which one was meant."""
    assert len({(one.name, one.found) for one in MISTAKES}) == len(MISTAKES) >= 20


async def test_a_sound_machine_has_nothing_to_mend(bench: Bench) -> None:
    """No mistake, no advice: every line that is not about the daemon, which does not run here, is good."""
    bench.report()
    findings = await bench.check(bench.unit())
    # Only root may stop a unit, so that anybody else is told so.
    expected = {"daemon"} if os.geteuid() == 0 else {"daemon", "target"}
    assert {line.name for line in findings if line.result in (Result.WARN, Result.FAIL)} == expected


async def test_nothing_is_changed(bench: Bench) -> None:
    """Whatever is tried is gone again: no order, no flag, no journal row, no time of a file."""
    bench.report()
    bench.order("another")
    bench.state_dir.mkdir()

    def look() -> dict[str, bytes]:
        return {
            str(path): path.read_bytes() if path.is_file() else b""
            for path in bench.home.rglob("*")
            if path.name != "spotwatch.toml"
        }

    toml = '[flag]\npath = "checkpoint-now"\n'
    before = look()
    await bench.check(toml)
    assert look() == before
