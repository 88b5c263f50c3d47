# SPDX-License-Identifier: Apache-2.0
"""Every mistake that `check` knows: made for real, found by its own line, mended by its own advice.

What clouds do wrong is in test_clouds; what takes another user is in test_flag.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from spotwatch.checks import Result, has_failed
from spotwatch.handshake import Saved
from tests.checks.bench import Bench, named
from tests.checks.mistakes import (
    Mistake,
    announce_without_address,
    draining_of,
    elsewhere,
    file_as_runtime_dir,
    file_as_state_dir,
    flag_is,
    half_a_report,
    half_an_order,
    linked_runtime_dir,
    mistake,
    mode,
    order_of,
    pidfile_of_nobody,
    port_taken,
    report,
    torn_journal,
    two_trainers,
    webhook,
)
from tests.checks.unit_mistakes import UNIT_MISTAKES

MISTAKES = (
    *UNIT_MISTAKES,
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
    mistake("two match", two_trainers, "target", "warn", "2 processes match", "make target.process longer"),
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
        "foreign proxy",
        webhook(trusted_proxies=("192.0.2.7",)),
        "webhook.reach",
        "warn",
        "only this machine can push, and webhook.trusted_proxies is 192.0.2.7",
        "name the one that it comes from",
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
    # Where its unit is installed, the daemon that does not run is a failure of its own.
    others = [line for line in findings if line.name != "daemon" or one.name == "daemon"]
    assert has_failed(others) is (one.result is Result.FAIL)


def test_no_two_mistakes_share_a_line() -> None:
    """At least twenty of them are told apart, so that nobody has to guess which one was meant."""
    assert len({(one.name, one.found) for one in MISTAKES}) == len(MISTAKES) >= 20


async def test_a_sound_machine_has_nothing_to_mend(bench: Bench) -> None:
    """No mistake, no advice: every line that is not about the daemon, which does not run here, is good."""
    bench.report()
    findings = await bench.check(bench.unit())
    assert {line.name for line in findings if line.result in (Result.WARN, Result.FAIL)} == {"daemon"}


async def test_a_proxy_on_this_machine_is_no_mistake(bench: Bench) -> None:
    """The listener of the documented setup is reached by way of it, and the line says so."""
    findings = await bench.check(webhook(trusted_proxies=("127.0.0.1",))(bench))
    (line,) = named(findings, "webhook.reach")
    assert line.result is Result.OK
    assert "a proxy here (127.0.0.1) hands on" in line.found


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
