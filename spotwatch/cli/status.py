# SPDX-License-Identifier: Apache-2.0
"""`spotwatch status`: what the daemon watches, what is in force, and what would be lost.

It changes nothing, and is answered by the daemon itself or, when its HTTP is off, by its files.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

import click
import requests

from spotwatch.cli._addresses import address_of, checked_url
from spotwatch.cli._options import Options, find_runtime_dir, place_options
from spotwatch.cli._relay_text import describe_relay, is_relay
from spotwatch.cli._status_files import read_runtime_dir
from spotwatch.cli._status_text import describe
from spotwatch.clock import SystemClock
from spotwatch.config import Http
from spotwatch.config_places import closed_folder
from spotwatch.errors import ConfigError
from spotwatch.handshake import ORDER
from spotwatch.masking import escape
from spotwatch.model import to_rfc3339
from spotwatch.runtime_lock import find_daemon

TIMEOUT_SECONDS = 2.0
MAX_DOCUMENT_BYTES = 4 * 1024 * 1024


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

    A relay, asked with its own --config, says whether a mail would reach its Droplets.

    Exits 1 when no daemon answers. Without --url, the files of one that runs with its HTTP off are answer
    enough.
    """  # noqa: D301 - click wants the character, not the two letters
    now = SystemClock().now()
    note = ""
    runs = True
    try:
        document = _ask(_find_url(options) if url is None else checked_url(url, f"http://{Http().listen}"))
        _check_same(document, options)
    except _NoAnswer as error:
        document, note = _look_around(str(error), find_runtime_dir(options), now, is_named=url is not None)
        runs = document["daemon"]
    if as_json:
        click.echo(json.dumps(document, indent=2))
    elif is_relay(document):
        for line in describe_relay(document):
            click.echo(line)
    elif runs or any(document.get(key) for key in ("draining", "cases", "orders", "trainers", "refused")):
        for line in describe(document, now):
            click.echo(line)
    if note:
        click.echo(note, err=True)
    if not runs:
        context.exit(1)


def _find_url(options: Options) -> str:
    address = address_of(options, "http.listen", Http().listen)
    if address is None:
        raise _NoAnswer("http.listen is off")
    return address


def _ask(url: str) -> dict[str, Any]:
    """Return the document at `/status`."""
    with requests.Session() as session:
        session.trust_env = False  # a proxy knows nothing of this machine's loopback
        try:
            with session.get(
                f"{url.rstrip('/')}/status", timeout=TIMEOUT_SECONDS, allow_redirects=False, stream=True
            ) as reply:
                if reply.status_code == requests.codes.forbidden:
                    raise _NoAnswer(f"{url} refuses to tell (HTTP 403): it tells only its own machine")
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


def _look_around(why: str, runtime_dir: Path, now: datetime, *, is_named: bool) -> tuple[dict[str, Any], str]:
    """Return what can be told without an answer, and a line that says so.

    Args:
        why: there is no answer.
        runtime_dir: where a daemon may be all the same.
        now: the present.
        is_named: the address was: files that may be another daemon's are no answer for it.
    """
    nothing = {"version": 1, "source": "none", "at": to_rfc3339(now), "daemon": False}
    closed = closed_folder(runtime_dir / ORDER)
    pid = None if closed else find_daemon(runtime_dir)
    if is_named:
        here = "" if pid is None else f" One runs on {runtime_dir}: leave --url out."
        return nothing, f"No daemon answers: {why}.{here or ' Start one: spotwatch run'}"
    if closed is not None:
        hidden = f"{closed} is closed to uid {os.geteuid()}, so that the files in {runtime_dir} tell nothing"
        return (
            nothing,
            f"No daemon answers: {why}, and {hidden}. Use sudo, or name another with --runtime-dir.",
        )
    document = {**read_runtime_dir(runtime_dir, now), "pid": pid, "daemon": pid is not None}
    return document, _explain(why, runtime_dir, pid)


def _explain(why: str, runtime_dir: Path, pid: int | None) -> str:
    if pid is None:
        return f"No daemon answers: {why}, and none runs on {runtime_dir}. Start one: spotwatch run"
    who = f"pid {pid}" if pid else "pid unknown"
    return f"A daemon runs ({who}), but {why}; this is what its files in {runtime_dir} tell."
