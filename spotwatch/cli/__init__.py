# SPDX-License-Identifier: Apache-2.0
"""The command line: one module for each command, imported only when that command is used.

It knows names and where they live; what a command does is in its own module, as `command`.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Mapping
from types import MappingProxyType

import click

from spotwatch import __version__
from spotwatch.errors import ConfigError

_COMMANDS: Mapping[str, str] = MappingProxyType(
    {
        "run": "Watch this machine's cloud, and tell the trainer in time.",
        "exec": "Run COMMAND under the daemon, and exit with its outcome.",
        "check": "Is it working, and if not, what is to be done?",
        "status": "What is watched and in force, the last save, the work at risk.",
        "trigger": "Give a notice by hand, or take it back.",
        "mail": "Say what a mail would do, or hand it to the daemon or a relay.",
        "relay": "Receive a fleet's mail, and put each notice into a mailbox.",
        "emulate": "Play a cloud's metadata service here, and give a notice.",
        "drill": "Rehearse a whole reclaim, and say whether a step was lost.",
        "checkpoints": "List, show, verify and prune the checkpoints of a run.",
    }
)
"""Each command and what the list says of it: the list is shown without importing any of them."""
_LEFT_OUT: Mapping[str, str] = MappingProxyType(
    {
        "requests": "requests",
        "boto3": "boto3",
        "botocore": "boto3",
        "dkim": "spotwatch[mail]",
        "dns": "spotwatch[mail]",
        "cryptography": "spotwatch[mail]",
    }
)
"""Libraries that the daemon's image does not have, and how pip calls what brings them."""
_EPILOG = """\b
Examples:
  spotwatch drill --cloud all                    see it work, here and now
  spotwatch run --unit spot-train.service        watch this machine
  spotwatch exec -- python train.py              the same, with the trainer as its child
  spotwatch check                                is it set up right?
"""


class _LazyGroup(click.Group):
    """A group that imports a command's module only when it is asked for."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        del ctx
        return list(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        del ctx
        if cmd_name not in _COMMANDS:
            return None
        module = importlib.import_module(f"{__name__}.{cmd_name}")
        command: click.Command = module.command
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        del ctx
        with formatter.section("Commands"):
            formatter.write_dl(list(_COMMANDS.items()))


@click.group(cls=_LazyGroup, epilog=_EPILOG, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="spotwatch")
def cli() -> None:
    """Turn a cloud's "we are taking this machine back" into a checkpoint that is proven to be safe.

    `spotwatch COMMAND --help` tells more of each. Exit codes: 0 done, 1 the answer is no, 2 usage or
    configuration.
    """


def main() -> None:
    """Run the command line; exit 2 on a configuration error, each problem on its own line.

    A library that is missing is one too: the image of the daemon has only what the daemon needs.
    """
    try:
        cli()
    except ModuleNotFoundError as error:
        library = (error.name or "").partition(".")[0]
        if library not in _LEFT_OUT:
            raise
        mend = f"use the image built with --target full, or pip install {_LEFT_OUT[library]!r}"
        click.echo(f"spotwatch: this needs {library}, which is not installed here; {mend}", err=True)
        sys.exit(2)
    except ConfigError as error:
        for problem in error.problems:
            click.echo(f"spotwatch: {problem}", err=True)
        sys.exit(2)
