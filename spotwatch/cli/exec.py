# SPDX-License-Identifier: Apache-2.0
"""`spotwatch exec`: the daemon with the trainer as its child.

It turns options into settings; everything else is the daemon's.
"""

from __future__ import annotations

import click

from spotwatch.cli._daemon import start
from spotwatch.cli._options import Options, daemon_options


@click.command(
    "exec",
    context_settings={"ignore_unknown_options": False, "allow_interspersed_args": False},
    epilog="Example: spotwatch exec -- torchrun --nproc-per-node 8 train.py",
)
@daemon_options
@click.option(
    "--stay", is_flag=True, help="After a stop, stay, and start the command again if the machine survives."
)
@click.argument("argv", nargs=-1, required=True, metavar="-- COMMAND...")
def command(options: Options, stay: bool, argv: tuple[str, ...]) -> None:
    """Run COMMAND under the daemon, and exit with its outcome.

    0: it finished. 75: it was stopped with a durable save. 76: it was stopped without one. Anything else is
    its own code, 128 + n for signal n.
    """
    start(options, argv=argv, stays=stay)
