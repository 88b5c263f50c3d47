# SPDX-License-Identifier: Apache-2.0
"""`spotwatch status`: what the daemon watches, what is in force, and what would be lost.

It changes nothing, and is answered by the daemon itself or, when its HTTP is off, by its files.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click
import requests

from spotwatch.cli._options import Options, find_runtime_dir, peek, place_options
from spotwatch.cli._status_files import read_runtime_dir
from spotwatch.cli._status_text import describe
from spotwatch.clock import SystemClock
from spotwatch.config import Http
from spotwatch.config_check import parse_listen
from spotwatch.errors import ConfigError
from spotwatch.masking import escape
from spotwatch.rundir import find_daemon

TIMEOUT_SECONDS = 2.0
MAX_DOCUMENT_BYTES = 4 * 1024 * 1024
_ANY_ADDRESS = {"": "127.0.0.1", "0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104 - where such a listener is reached


class _NoAnswer(Exception):
    """Why the daemon's HTTP did not help."""


@click.command(name="status")
@place_options
@click.option("--json", "as_json", is_flag=True, help="One JSON document instead of text.")
@click.option("--url", metavar="URL", help="The daemon's HTTP.  [default: http.listen of the configuration]")
@click.pass_context
def command(context: click.Context, options: Options, as_json: bool, url: str | None) -> None:
    """Show watched signals, notices in force, orders, trainers, the last save and the work at risk.

    \b
    For people:        spotwatch status
    For programs:      spotwatch status --json | jq .work_at_risk_seconds
    Somewhere else:    spotwatch status --url http://127.0.0.1:9500

    Exits 1 when no daemon answers.
    """  # noqa: D301 - click wants the character, not the two letters
    now = SystemClock().now()
    note = ""
    runs = True
    try:
        document = _ask(url or _find_url(options))
        _check_same(document, options)
    except _NoAnswer as error:
        runtime_dir = find_runtime_dir(options)
        pid = find_daemon(runtime_dir)
        runs = pid is not None
        document = {**read_runtime_dir(runtime_dir, now), "pid": pid, "daemon": runs}
        note = _explain(str(error), runtime_dir, pid)
    if as_json:
        click.echo(json.dumps(document, indent=2))
    elif runs or any(document[key] for key in ("draining", "cases", "orders", "trainers", "refused")):
        for line in describe(document, now):
            click.echo(line)
    if note:
        click.echo(note, err=True)
    if not runs:
        context.exit(1)


def _find_url(options: Options) -> str:
    text = peek(options, "http.listen")
    try:
        listen = parse_listen(Http().listen if text is None else str(text))
    except ValueError as error:
        raise ConfigError(f"http.listen: {error}") from error
    if listen is None:
        raise _NoAnswer("http.listen is off")
    host = _ANY_ADDRESS.get(listen.host, listen.host)
    return f"http://{f'[{host}]' if ':' in host else host}:{listen.port}"


def _ask(url: str) -> dict[str, Any]:
    """Return the document at `/status`."""
    with requests.Session() as session:
        session.trust_env = False  # a proxy knows nothing of this machine's loopback
        try:
            with session.get(
                f"{url.rstrip('/')}/status", timeout=TIMEOUT_SECONDS, allow_redirects=False, stream=True
            ) as reply:
                if reply.status_code != requests.codes.ok:
                    raise _NoAnswer(f"{url} answers HTTP {reply.status_code}")
                document = json.loads(next(reply.iter_content(MAX_DOCUMENT_BYTES), b""))
        except requests.exceptions.InvalidURL as error:
            raise ConfigError(f"--url {url!r} is no address") from error
        except (requests.RequestException, OSError) as error:
            raise _NoAnswer(f"{url} does not answer ({type(error).__name__})") from error
        except (ValueError, RecursionError) as error:
            raise _NoAnswer(f"{url} answers, but not with JSON") from error
    if not isinstance(document, dict):
        raise _NoAnswer(f"{url} answers, but not as spotwatch does")
    return document


def _check_same(document: Mapping[str, Any], options: Options) -> None:
    """Turn down an answer of another daemon than the one whose directory was named."""
    said = document.get("runtime_dir")
    if options.runtime_dir is not None and said is not None and str(options.runtime_dir) != said:
        raise _NoAnswer(f"what answers is the daemon on {escape(str(said))}")


def _explain(why: str, runtime_dir: Path, pid: int | None) -> str:
    if pid is None:
        return f"No daemon answers: {why}, and none runs on {runtime_dir}. Start one: spotwatch run"
    who = f"pid {pid}" if pid else "pid unknown"
    return f"A daemon runs ({who}), but {why}; this is what its files in {runtime_dir} tell."
