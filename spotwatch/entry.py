# SPDX-License-Identifier: Apache-2.0
"""Where the command begins. The rest is the command line's, which takes most of the start to load."""

from __future__ import annotations

import sys

from spotwatch.held_signal import hold_back

_HEARS_SIGTERM = ("run", "exec", "relay")
"""Commands that let it through once they can hear it."""


def main() -> None:
    """Run the command line, and hold SIGTERM back for a command that hears it itself."""
    if len(sys.argv) > 1 and sys.argv[1] in _HEARS_SIGTERM:
        hold_back()
    from spotwatch.cli import main as run  # noqa: PLC0415 - not before a signal is kept

    run()
