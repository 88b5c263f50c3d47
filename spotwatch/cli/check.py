# SPDX-License-Identifier: Apache-2.0
"""`spotwatch check`: is it working, and if not, what is to be done?

What is asked and judged is in `spotwatch.checks`; here it is shown.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import sys
import textwrap
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import click

from spotwatch.cli._options import Options, load_settings, settings_options
from spotwatch.errors import ConfigError

if TYPE_CHECKING:
    from spotwatch.checks import Finding

_EPILOG = """\b
Examples:
  spotwatch check                                   before you rely on it; with sudo, for the unit's daemon
  spotwatch check --provider aws --unit train       as `spotwatch run` would be started
  spotwatch check --json | jq '.checks[] | select(.result == "fail")'
"""
_COLOURS = {"ok": "green", "warn": "yellow", "fail": "red", "skip": "bright_black"}
_LEAST_TEXT_WIDTH = 30


@click.command(name="check", epilog=_EPILOG)
@settings_options
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
@click.pass_context
def command(context: click.Context, options: Options, *, as_json: bool) -> None:
    """Say whether a notice would end in a saved checkpoint here, and how to mend what is wrong.

    A line for each question: ok, warn (worth a look), fail (a notice or a save would be lost), skip. It takes
    ten seconds at most and changes nothing. Root becomes the user that spotwatch.service names; to any other
    user, only what everybody can tell is told.

    Exits 0 when nothing would fail, 1 when something would, 2 when the configuration is refused.
    """
    # Imported late: `--help` needs none of it.
    from spotwatch import checks  # noqa: PLC0415
    from spotwatch.clock import SystemClock  # noqa: PLC0415

    here = checks.take_standpoint(os.environ, runtime_dir=options.runtime_dir)
    try:
        loaded = load_settings(options, environ=here.environ)
        there = checks.revise(here, os.environ, loaded.settings.runtime_dir)
        if there is not here:
            here, loaded = there, load_settings(options, environ=there.environ)
    except ConfigError as error:
        # The daemon has refused the same, and may know more: its credentials went when it ended.
        last_words = asyncio.run(checks.ask_last_words()) if here.findings else []
        _show(
            [*here.findings, *last_words, *checks.refused(error, is_strange=here.is_strange)], as_json=as_json
        )
        context.exit(2)
    if sys.stderr.isatty() and not as_json:
        click.echo("asking the cloud, the trainer and the daemon; ten seconds at most", err=True)
    answers = checks.run_checks(
        loaded,
        SystemClock(),
        here.environ,
        is_strange=here.is_strange,
        is_units=here.is_units,
        left_out=here.left_out,
    )
    findings = [*here.findings, *asyncio.run(answers)]
    _show(findings, as_json=as_json)
    context.exit(1 if checks.has_failed(findings) else 0)


def _show(findings: Sequence[Finding], *, as_json: bool) -> None:
    if as_json:
        from spotwatch.checks import document  # noqa: PLC0415 - as above

        click.echo(json.dumps(document(findings), indent=1))
        return
    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else 0
    for line in describe(findings, width=width):
        click.echo(line)


def describe(findings: Sequence[Finding], *, width: int = 0) -> Iterator[str]:
    """Yield the lines that a person reads.

    Args:
        findings: in their order.
        width: of the terminal; 0: do not break lines.
    """
    from spotwatch.checks import is_partial  # noqa: PLC0415 - as above

    name_width = max((len(finding.name) for finding in findings), default=0)
    indent = len("fail  ") + name_width + len("  ")
    for finding in findings:
        result = click.style(f"{finding.result.value:<4}", fg=_COLOURS[finding.result.value])
        found = _wrap(finding.found, width, indent)
        yield f"{result}  {finding.name:<{name_width}}  {found}"
        if finding.mend:
            yield " " * (indent - 2) + "> " + _wrap(finding.mend, width, indent)
    counts = Counter(finding.result.value for finding in findings)
    yield ""
    told = [f"{counts[result]} {words}" for result, words in _WORDS.items() if counts[result]]
    verdict = "Something would fail" if counts["fail"] else "Nothing would fail"
    if is_partial(findings) and not counts["fail"]:
        verdict = "Nothing fails of what can be told from here"
    yield f"{verdict}: {', '.join(told)}."


_WORDS = {"fail": "to mend", "warn": "worth a look", "ok": "fine", "skip": "not asked"}


def _wrap(text: str, width: int, indent: int) -> str:
    """Return `text` broken so that it stays in its column."""
    if width - indent < _LEAST_TEXT_WIDTH:
        return text
    return ("\n" + " " * indent).join(textwrap.wrap(text, width - indent, break_on_hyphens=False))
