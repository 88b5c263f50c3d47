# SPDX-License-Identifier: Apache-2.0
"""`spotwatch drill`: the whole reclaim rehearsed here, with a verdict.

It turns options into a drill, and its outcome into text, JSON and an exit code; `spotwatch.drill` plays it.
"""

from __future__ import annotations

import asyncio
import importlib.util
import json
import signal
import sys
from collections.abc import Coroutine
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlsplit

import click

from spotwatch.cli._durations import DURATION
from spotwatch.drill import Drill, Timeline, document, interval_seconds, make_plan, run_drill
from spotwatch.drill.report import verdict_lines
from spotwatch.emulator import clouds
from spotwatch.errors import ConfigError

T = TypeVar("T")

_EPILOG = """\b
Examples:
  spotwatch drill                                   all clouds, a small trainer of our own
  spotwatch drill --cloud digitalocean --by-mail    its mail, from DKIM to the last step
  spotwatch drill --cloud aws --window 2m --store s3://bucket/drills -- python train.py
"""


@click.command(
    "drill",
    context_settings={"ignore_unknown_options": False, "allow_interspersed_args": False},
    epilog=_EPILOG,
)
@click.option(
    "--cloud",
    "names",
    multiple=True,
    type=click.Choice([*clouds(), "all"]),
    help="Whose reclaim; may be repeated.  [default: all]",
)
@click.option(
    "--window", type=DURATION, default="20s", show_default=True, help="From the notice to the reclaim."
)
@click.option(
    "--store", "store_url", default="", metavar="URL", help="Save here, in runs of the drill's own."
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
@click.option(
    "--notice-after",
    type=DURATION,
    default="10s",
    show_default=True,
    help="When the notice comes to a COMMAND that does not report its steps.",
)
@click.option(
    "--limit",
    type=DURATION,
    default="10m",
    show_default=True,
    help="Longest wait for a trainer to train, and to finish.",
)
@click.option(
    "--by-mail", is_flag=True, help="DigitalOcean's notice comes as the mail itself, signed by DKIM."
)
@click.argument("argv", nargs=-1, metavar="[-- COMMAND...]")
def command(
    *,
    names: tuple[str, ...],
    window: float,
    store_url: str,
    as_json: bool,
    notice_after: float,
    limit: float,
    by_mail: bool,
    argv: tuple[str, ...],
) -> None:
    """Rehearse a reclaim: notice, save, the machine is gone, the same command goes on elsewhere.

    The clouds are emulated; daemon, trainer, store and kill are real. With COMMAND it is your own trainer, in
    a scratch store and runs of the drill's own. Exit 0: passed. 1: something would be lost.
    """
    wanted = clouds() if not names or "all" in names else tuple(dict.fromkeys(names))
    if by_mail and "digitalocean" not in wanted:
        raise ConfigError("--by-mail is for digitalocean, which announces by mail; add --cloud digitalocean")
    plan = make_plan(window, wanted)
    if not argv and importlib.util.find_spec("torch") is None:
        raise ConfigError(
            "the drill's own trainer needs torch, which trainers bring themselves: pip install "
            "'spotwatch[demo]' torch, or drill your trainer: spotwatch drill -- COMMAND"
        )
    # With --json standard output is the document's; a person still sees what happens.
    out = sys.stdout if not as_json else sys.stderr if sys.stderr.isatty() else None
    timeline = Timeline(out)
    timeline.line(plan.describe())
    intervals = ", ".join(f"{c} {interval_seconds(c):g} s" for c in wanted)
    timeline.line(f"an order must be out one interval ({intervals}) + 1 s after the notice")
    drill = Drill(
        clouds=wanted,
        plan=plan,
        store_url=_absolute(store_url),
        command=argv,
        notice_after_seconds=notice_after,
        limit_seconds=limit,
        by_mail=by_mail,
    )
    outcomes, logs = _run(run_drill(drill, timeline))
    result = document(outcomes, window_seconds=window)
    if as_json:
        shown = dict(result) if logs is None else {**result, "logs": str(logs)}
        click.echo(json.dumps(shown, indent=2))
    else:
        for line in verdict_lines(result, logs):
            click.echo(line)
    sys.exit(0 if result["verdict"] == "pass" else 1)


def _run(work: Coroutine[Any, Any, T]) -> T:
    """Run `work`; SIGTERM and SIGHUP end it as Ctrl-C does, cleanly, with 128 + n."""
    ended_by: list[int] = []

    async def run() -> T:
        loop = asyncio.get_running_loop()
        task = asyncio.ensure_future(work)

        def end(number: int) -> None:
            # Once: a second one must not break off the tidying up.
            if not ended_by:
                ended_by.append(number)
                task.cancel()

        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            loop.add_signal_handler(number, end, number)
        return await task

    try:
        return asyncio.run(run())
    except asyncio.CancelledError:
        click.echo("broken off: every process of the drill is killed, all that it made is removed", err=True)
        sys.exit(128 + ended_by[0] if ended_by else 1)


def _absolute(url: str) -> str:
    """Return `url` with a relative path made absolute: trainers are started elsewhere."""
    return str(Path(url).expanduser().absolute()) if url and not urlsplit(url).scheme else url
