# SPDX-License-Identifier: Apache-2.0
"""`spotwatch checkpoints`: the registry of a run, in any store, read and tended by hand.

It is the list of its subcommands; each one is in a module of its own. None of them needs torch.
"""

from __future__ import annotations

import click

from spotwatch.cli.checkpoints import list as listing
from spotwatch.cli.checkpoints import prune, show, verify

_EPILOG = """\b
Examples:
  spotwatch checkpoints list s3://bucket/checkpoints           the runs, or the checkpoints of one
  spotwatch checkpoints show s3://bucket/checkpoints/sweep-01  all about the one that LATEST names
  spotwatch checkpoints verify /data/checkpoints/sweep-01      is every byte what it should be?
  spotwatch checkpoints prune /data/checkpoints/sweep-01 --keep 2 --dry-run
"""


@click.group(name="checkpoints", epilog=_EPILOG)
def command() -> None:
    """List, show, verify and prune the checkpoints of a run.

    URL is a path, file://, s3://, spaces://, gs:// or az://, of the run itself or, with --run-id, of the
    folder that holds the runs. Credentials are found as a trainer finds them.
    """


command.add_command(listing.command)
command.add_command(show.command)
command.add_command(verify.command)
command.add_command(prune.command)
