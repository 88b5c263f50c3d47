# SPDX-License-Identifier: Apache-2.0
"""All questions of `spotwatch check`: asked at once, each within its limit, answered in a fixed order.

What a question finds out is its own module's knowledge.
"""

from __future__ import annotations

import asyncio
import errno
import os
import pwd
from collections.abc import Awaitable, Callable, Mapping
from collections.abc import Set as AbstractSet

from spotwatch.checks.clouds import Clouds, ask_clouds
from spotwatch.checks.daemons import ask_daemon, ask_orders
from spotwatch.checks.finding import Finding, fail, ok, skip, warn
from spotwatch.checks.flag import ask_flag
from spotwatch.checks.limits import LooseThreads, answered, in_thread
from spotwatch.checks.machine import Machine
from spotwatch.checks.mail import ask_mail
from spotwatch.checks.outside import ask_outside
from spotwatch.checks.pages import ask_pages
from spotwatch.checks.places import SUDO, ask_places
from spotwatch.checks.targets import ask_targets
from spotwatch.checks.times import ask_timedated, judge_clock, judge_end
from spotwatch.checks.trainers import ask_saves, ask_trainers
from spotwatch.checks.units import ask_units
from spotwatch.clock import Clock
from spotwatch.config_load import Loaded
from spotwatch.errors import ConfigError

LIMIT_SECONDS = 9.0
"""For one question, what it waits for included. Asked at once, all of them end within ten seconds."""
_LEAVE_SECONDS = 0.5
_DENIED = os.strerror(errno.EACCES)

Question = Callable[[Machine], Awaitable[list[Finding]]]
_QUESTIONS: tuple[tuple[str, Question], ...] = (
    ("target", ask_targets),
    ("unit", ask_units),
    ("trainer", ask_trainers),
    ("runtime_dir", ask_places),
    ("flag", ask_flag),
    ("daemon", ask_daemon),
    ("http", ask_pages),
    ("order", ask_orders),
    ("outside", ask_outside),
    ("mail", ask_mail),
)
PUBLIC = frozenset({"cloud", "clock", "daemon", "http", "order"})
"""What a user who is not the daemon's can tell; all else asks what the daemon may do, or knows."""


def refused(error: ConfigError, *, is_strange: bool = False) -> list[Finding]:
    """Return a line for each problem of a configuration that cannot be used at all.

    Args:
        error: what was refused.
        is_strange: the daemon is another user's, who may read more.
    """
    return [_refuse(problem, is_strange=is_strange) for problem in error.problems]


def _refuse(problem: str, *, is_strange: bool) -> Finding:
    name = "configuration"
    found, _, mend = problem.partition("; ")
    if _DENIED in found and is_strange:
        return skip(name, f"{found}, for uid {os.geteuid()}", SUDO)
    if _DENIED in found and not mend:
        mend = (
            f"let {_our_name()}, as whom the daemon runs too, read it and search the folders above it; or "
            "put it into /etc/spotwatch"
        )
    return fail(name, found, mend or "mend it, and run the check again")


def _our_name() -> str:
    uid = os.geteuid()
    try:
        return f"user {pwd.getpwuid(uid).pw_name}"
    except KeyError:
        return f"uid {uid}"


async def run_checks(
    loaded: Loaded,
    clock: Clock,
    environ: Mapping[str, str],
    *,
    is_strange: bool = False,
    is_units: bool = True,
    left_out: AbstractSet[str] = frozenset(),
    limit_seconds: float = LIMIT_SECONDS,
) -> list[Finding]:
    """Return every line, within about ten seconds, whatever hangs.

    Args:
        loaded: the configuration.
        clock: the real one.
        environ: the environment.
        is_strange: the daemon is another user's: only what this one can tell is asked.
        is_units: the daemon asked about is that of spotwatch.service, where there is one.
        left_out: questions that who asks cannot judge.
        limit_seconds: for each question.
    """
    # Whatever resolves a name or waits for a disk, in libraries too, must not outlast us.
    asyncio.get_running_loop().set_default_executor(LooseThreads())
    machine = Machine(loaded, clock, environ, is_strange=is_strange, is_units=is_units)
    clouds: asyncio.Task[Clouds] = asyncio.create_task(ask_clouds(machine), name="check clouds")

    async def cloud(_: Machine) -> list[Finding]:
        return (await asyncio.shield(clouds)).findings

    async def times(_: Machine) -> list[Finding]:
        dates = (await asyncio.shield(clouds)).dates
        said = judge_clock(dates) if dates else await in_thread(ask_timedated)
        return [said, *judge_end(loaded.settings.policy.ends_at, clock.now())]

    async def windows(_: Machine) -> list[Finding]:
        return await ask_saves(machine, await asyncio.shield(clouds))

    questions = [("cloud", cloud), ("clock", times), *_QUESTIONS[:3], ("window", windows), *_QUESTIONS[3:]]
    wanted = PUBLIC if is_strange else {name for name, _ in questions} - left_out
    questions = [(name, question) for name, question in questions if name in wanted]
    try:
        answers = await asyncio.gather(
            *(answered(name, question(machine), limit_seconds) for name, question in questions)
        )
    finally:
        machine.close()
        clouds.cancel()
        await asyncio.wait({clouds}, timeout=_LEAVE_SECONDS)
    return [*_configuration(loaded), *(finding for lines in answers for finding in lines)]


def _configuration(loaded: Loaded) -> list[Finding]:
    given = sorted({source for source in loaded.sources.values() if source != "default"})
    others = ["the command line" if source == "flag" else source for source in given if source[:5] != "file "]
    place = "no file, which is fine" if loaded.path is None else str(loaded.path)
    said = place + (f"; also from {', '.join(others)}" if others else "")
    mend = "see the key's name in `spotwatch run --print-config`"
    lines = [
        warn("configuration", warning, mend)
        for warning in loaded.warnings
        if not warning.startswith("state_dir")
    ]
    return [ok("configuration", said), *lines]
