# SPDX-License-Identifier: Apache-2.0
"""`spotwatch mail`: what one does by hand, or by a mail server, with one mail.

It is the list of its subcommands; each one is in a module of its own.
"""

from __future__ import annotations

import click

from spotwatch.cli.mail import post

_EPILOG = """\b
Examples:
  spotwatch mail post --secret-file /etc/spotwatch/pipe-secret < reclaim.eml
"""


@click.group(name="mail", epilog=_EPILOG)
def command() -> None:
    """Hand a mail to the daemon, or to a relay."""


command.add_command(post.command)
