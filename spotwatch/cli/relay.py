# SPDX-License-Identifier: Apache-2.0
"""`spotwatch relay`: one receiver of mail for a fleet, which writes signed letters into a mailbox.

It turns options into settings; everything else is the relay's.
"""

from __future__ import annotations

import asyncio
import os
import sys
from dataclasses import replace
from pathlib import Path

import click

from spotwatch import logs
from spotwatch.cli._options import Options, load_settings, peek
from spotwatch.config_layers import DEFAULT_PATH

_EPILOG = """\b
Examples:
  spotwatch relay --make-key /etc/spotwatch/relay-key      once; prints the Droplets' mailbox_keys
  spotwatch relay --config /etc/spotwatch/relay.toml       receive, until told to end
  spotwatch status --config /etc/spotwatch/relay.toml      would a mail reach its Droplets?

\b
Can it read the API and write the mailbox? By hand, with the files that the unit hands over by name:
  set -a; . /etc/spotwatch/relay.env; CREDENTIALS_DIRECTORY=/etc/spotwatch
  spotwatch relay --config /etc/spotwatch/relay.toml --once
"""


@click.command("relay", epilog=_EPILOG)
@click.option(
    "--config", type=click.Path(path_type=Path, dir_okay=False), metavar="FILE",
    help=f"Read this TOML file instead of {DEFAULT_PATH}.",
)  # fmt: skip
@click.option(
    "--once", is_flag=True,
    help="Ask the API, send what waits and write a sign of life, each once; exit 1 if one of them failed.",
)  # fmt: skip
@click.option(
    "--make-key", type=click.Path(path_type=Path, dir_okay=False), metavar="FILE",
    help="Write a new signing key to FILE (mode 0600), print the public one, and exit.",
)  # fmt: skip
@click.option("--log-level", type=click.Choice(["debug", "info", "warning", "error"]))
@click.option("--log-format", type=click.Choice(["auto", "console", "json"]))
def command(
    config: Path | None, once: bool, make_key: Path | None, log_level: str | None, log_format: str | None
) -> None:
    """Receive a fleet's mail here, and let each Droplet poll a mailbox for its own notice."""
    # Imported late, as is the relay itself: `--help` needs none of it.
    from spotwatch.relay import making  # noqa: PLC0415

    if make_key is not None:
        click.echo(making.make_key(make_key.absolute()))
        return
    options = Options(config=config, log_level=log_level, log_format=log_format)
    loaded = load_settings(options)
    settings = loaded.settings
    logs.set_up_logging(format=settings.log.format, level=settings.log.level)
    if settings.state_dir is None:
        # Nothing new can be kept there, but promised letters may be waiting in it.
        named = peek(options, "state_dir")
        settings = replace(settings, state_dir=making.find_readable_state_dir(named, os.environ))
    for warning in loaded.warnings:
        logs.get_logger().warning("configuration", problem=warning)
    from spotwatch.clock import SystemClock  # noqa: PLC0415
    from spotwatch.open_files import with_room  # noqa: PLC0415
    from spotwatch.relay.service import Relay, serve  # noqa: PLC0415

    if not once:
        sys.exit(asyncio.run(with_room(serve(settings, SystemClock(), environ=os.environ))))

    async def check() -> list[str]:
        relay = Relay(settings, SystemClock(), environ=os.environ)
        problems = await relay.once()
        click.echo(f"droplets: {len(relay.fleet.droplets)}; letters waiting: {len(relay.outbox)}")
        return problems

    problems = asyncio.run(check())
    for problem in problems:
        click.echo(f"spotwatch: {problem}", err=True)
    sys.exit(1 if problems else 0)
