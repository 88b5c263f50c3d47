# SPDX-License-Identifier: Apache-2.0
"""The registry of a run on the command line: `group` has the subcommands, one module each.

Beside them: `run` (which run and which checkpoint a word means), `lease` (who has it), `tensors` and
`show_text` (what `show` tells). Nothing here trains, and none of it needs torch.
"""

from __future__ import annotations

from spotwatch.cli.checkpoints.group import command

__all__ = ["command"]
