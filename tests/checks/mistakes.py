# SPDX-License-Identifier: Apache-2.0
"""The mistakes that people make with spotwatch, each made for real on a test's machine."""

from __future__ import annotations

import socket
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from spotwatch.checks import Result
from tests.checks.bench import Bench, free_port

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


def blind_daemon(bench: Bench) -> str:
    """Name a trainer of another user, whom the daemon's sandbox hides."""
    bench.systemd({"spotwatch.service": {"User": "spotwatch", "ProtectProc": "invisible"}})
    return '[[target]]\nprocess = "no such trainer anywhere"\n'


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


def webhook(
    text: str = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw", *, trusted_proxies: tuple[str, ...] = ()
) -> Arrange:
    """Listen for pushes, with this secret."""
    proxies = f"trusted_proxies = {list(trusted_proxies)}"
    return lambda bench: f'[webhook]\nlisten = "127.0.0.1:{free_port()}"\n{proxies}\n{secret(bench, text)}'


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
