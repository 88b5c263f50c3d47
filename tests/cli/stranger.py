# SPDX-License-Identifier: Apache-2.0
"""The command line as an ordinary user runs it who is neither the daemon's nor the trainer's.

Only root can play one. It does not know what is to be said.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

STRANGER = 12345
# All is imported before the change of user: the interpreter's own files may be closed to others.
_SCRIPT = f"""
import encodings.ascii, encodings.idna, os, sys
import spotwatch.checks, spotwatch.cli.check, spotwatch.cli.status, spotwatch.cli.trigger, spotwatch.clock
import spotwatch.providers.file
from spotwatch.cli import main
os.setgroups([]); os.setgid({STRANGER}); os.setuid({STRANGER})
sys.argv[0] = "spotwatch"
main()
"""


def run_as_stranger(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run `spotwatch ARGUMENTS` as that user, in no directory and with no configuration of ours."""
    environ = {"PATH": "/usr/bin:/bin", "HOME": "/nonexistent", "SPOTWATCH_HTTP__LISTEN": ""}
    return subprocess.run(
        [sys.executable, "-c", _SCRIPT, *arguments],
        capture_output=True, text=True, check=False, env=environ, timeout=15,
    )  # fmt: skip


def open_to_all(folder: Path) -> None:
    """Let everyone search `folder` and what is above it, below the place for temporary files."""
    place = Path(tempfile.gettempdir())
    for parent in (folder, *folder.parents):
        if place in parent.parents:
            parent.chmod(0o755)
