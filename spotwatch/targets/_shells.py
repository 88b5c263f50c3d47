# SPDX-License-Identifier: Apache-2.0
"""Whether a shell is the trainer, or only runs it: by its traps, and by what runs below it.

`sh -c 'python train.py'` is told through its child, and `bash train.sh` with a loop and a `trap` itself: the
`sleep` that happens to run below it saves nothing. Pure; it does not look at the machine.
"""

from __future__ import annotations

import os
import signal

from spotwatch.errors import ActionError
from spotwatch.targets._proc import Row

NAMES = frozenset({"sh", "bash", "dash", "ash", "zsh", "ksh", "fish"})
# A script's own hands: no trainer, whatever else runs or does not run beside them.
_TOOLS = frozenset(
    {
        *("sleep", "date", "sync", "cp", "mv", "rm", "mkdir", "touch", "ls", "ln", "wc", "sort", "cut", "tr"),
        *("true", "false", "test", "seq", "echo", "printf", "tar", "gzip", "zstd", "dd", "stat"),
        *("df", "du", "id", "hostname", "uname", "jq", "bc", "expr", "md5sum", "sha256sum", "mktemp"),
        *("curl", "wget", "aws", "gsutil", "gcloud", "az", "s5cmd", "rclone", "nvidia-smi"),
    }
)
# bash with a trap on EXIT catches every signal that would end it, these among them (bash 5.2, sig.c:
# terminating_signals). Nobody traps all three on purpose.
_CAUGHT_FOR_EXIT = (signal.SIGILL, signal.SIGXCPU, signal.SIGVTALRM)


def has_trap(shell: Row, signum: int) -> bool:
    """Tell whether the shell's script handles `signum`, as far as one can tell: `trap … EXIT` looks alike."""
    return shell.catches(signum)


def below(shell: Row, children: list[Row], handling: list[Row], likely: list[Row], signum: int) -> list[Row]:
    """Return those of a shell's children among whom the trainer is; empty: it is the shell itself.

    Args:
        shell: the shell.
        children: without helpers and bystanders.
        handling: those of them that have, or run something that has, a handler for `signum`.
        likely: those of them that are python, a launcher or a wrapper.
        signum: what would be sent.

    Raises:
        ActionError: the shell has no trap, and runs nothing.
    """
    handling = [row for row in handling if not _is_tool(row)]
    if has_trap(shell, signum):
        # A command about to be run is a copy of the shell for a moment, traps and all.
        handling = [row for row in handling if row.argv != shell.argv]
        # A trap around a trainer that handles the signal hands it on or cleans up: either can wait.
        is_for_exit = all(map(shell.catches, _CAUGHT_FOR_EXIT))
        return handling or (likely if is_for_exit else [])
    if not children:
        raise ActionError(
            f"pid {shell.pid} ({_name(shell)}) runs nothing at the moment that could be the trainer"
        )
    return likely or handling or [row for row in children if not _is_tool(row)]


def _is_tool(row: Row) -> bool:
    return _name(row) in _TOOLS


def _name(row: Row) -> str:
    return os.path.basename(row.argv[0]).removeprefix("-") if row.argv else ""  # noqa: PTH119 - a name out of argv
