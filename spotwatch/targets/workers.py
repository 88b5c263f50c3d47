# SPDX-License-Identifier: Apache-2.0
"""What stands below a trainer: the processes that it made for its own use, DataLoader's workers among them.

Only for people to be warned; nobody is chosen or signalled by it. Standard library only.
"""

from __future__ import annotations

from spotwatch.targets._choice import is_helper
from spotwatch.targets._proc import Proc, read_table


def count_workers(procs: tuple[Proc, ...]) -> int:
    """Return how many processes `procs` made for their own use, DataLoader's workers among them."""
    table = read_table()
    parents = {proc.pid for proc in procs}
    return sum(row.ppid in parents and is_helper(row, table.get(row.ppid)) for row in table.values())
