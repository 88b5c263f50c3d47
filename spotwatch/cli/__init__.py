# SPDX-License-Identifier: Apache-2.0
"""The command line: one module for each command, imported only when that command is used.

It knows names and where they live; what a command does is in its own module, as `command`.
"""

from __future__ import annotations

import importlib
import sys

import click

from spotwatch import __version__
from spotwatch.errors import ConfigError

_COMMANDS = ("run", "exec", "check", "status", "trigger", "emulate", "drill")


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


@click.group(cls=_LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="spotwatch")
def cli() -> None:
    r"""Turn a cloud's "we are taking this machine back" into a checkpoint that is proven to be safe.

    \b
    See it work, here and now:   spotwatch drill --cloud all
    Watch this machine:          spotwatch run
    Is it set up right?          spotwatch check
    """


def main() -> None:
    """Run the command line; exit 2 on a configuration error, each problem on its own line."""
    try:
        cli()
    except ConfigError as error:
        for problem in error.problems:
            click.echo(f"spotwatch: {problem}", err=True)
        sys.exit(2)
