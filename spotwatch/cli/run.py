# SPDX-License-Identifier: Apache-2.0
"""`spotwatch run`: the daemon beside a trainer that somebody else starts.

It turns options into settings; everything else is the daemon's.
"""

from __future__ import annotations

import click

from spotwatch.cli._daemon import start
from spotwatch.cli._options import Options, daemon_options


@click.command("run", epilog="Example: spotwatch run --unit spot-train.service")
@daemon_options
def command(options: Options) -> None:
    """Watch this machine's cloud, and tell the trainer in time."""
    start(options)
