# SPDX-License-Identifier: Apache-2.0
"""`spotwatch mail`: what one does by hand, or by a mail server, with one mail.

It is the list of its subcommands; each one is in a module of its own.
"""

from __future__ import annotations

import click

from spotwatch.cli.mail import post, test

_EPILOG = """\b
Examples:
  spotwatch mail test reclaim.eml                    what would this mail do, and why?
  spotwatch mail post --secret-file /etc/spotwatch/pipe-secret < reclaim.eml
"""


@click.group(name="mail", epilog=_EPILOG)
def command() -> None:
    """Say what a mail would do, or hand it to the daemon or a relay."""


command.add_command(post.command)
command.add_command(test.command)
