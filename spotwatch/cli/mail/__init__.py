# SPDX-License-Identifier: Apache-2.0
"""Mail on the command line: `group` has the subcommands, one module each.

Nothing here runs beside the daemon: it is asked, or handed a mail.
"""

from __future__ import annotations

from spotwatch.cli.mail.group import command

__all__ = ["command"]
