# SPDX-License-Identifier: Apache-2.0
"""`spotwatch exec`: the daemon with the trainer as its child.

It turns options into settings; everything else is the daemon's.
"""

from __future__ import annotations

import click

from spotwatch.cli._daemon import start
from spotwatch.cli._options import Options, child_options


@click.command(
    "exec",
    context_settings={"ignore_unknown_options": False, "allow_interspersed_args": False},
    epilog="Example: spotwatch exec -- torchrun --nproc-per-node 8 train.py",
)
@child_options
@click.option(
    "--stay", is_flag=True, help="After a stop, stay, and start the command again if the machine survives."
)
@click.argument("argv", nargs=-1, required=True, metavar="-- COMMAND...")
def command(options: Options, stay: bool, argv: tuple[str, ...]) -> None:
    """Run COMMAND under the daemon, and exit with its outcome.

    \b
    0   it finished
    75  it was stopped with a durable save: the library has re-read it, or
        COMMAND itself exited with 75
    76  it was stopped without one; also a COMMAND that exits with 0 after a
        stop, which says nothing of a save: let it exit with 75
    Anything else is its own code, 128 + n for signal n.

    COMMAND is to stay in the foreground. SIGTERM, SIGINT and a closed terminal stop it, with time to save; a
    signal that is ignored at the start, as by nohup, stays ignored.
    """  # noqa: D301 - click wants the character, not the two letters
    if options.once:
        raise click.UsageError("--once would end before COMMAND does; use it with `spotwatch run`")
    start(options, argv=argv, stays=stay)
