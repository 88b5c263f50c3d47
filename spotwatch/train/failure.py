# SPDX-License-Identifier: Apache-2.0
"""What the status says of a save that failed: what it failed at, and why.

The daemon counts by that first word (`spotwatch_checkpoint_failures_total{reason}`). It raises nothing.
"""

from __future__ import annotations

from spotwatch.errors import CheckpointCorrupt, ConfigError, NoRoom, StoreError, StoreSilent

_MOST_CHARACTERS = 500
# The narrower class first.
_REASONS: tuple[tuple[type[Exception], str], ...] = (
    (ConfigError, "stage"),
    (NoRoom, "stage"),
    (CheckpointCorrupt, "verify"),
    (StoreSilent, "upload"),
    (StoreError, "store"),
)


def told(error: Exception) -> str:
    """Return `stage`, `upload`, `verify`, `store` or `other`, a colon, and the error's own words."""
    reason = next((reason for kind, reason in _REASONS if isinstance(error, kind)), "other")
    return f"{reason}: {str(error) or repr(error)}"[:_MOST_CHARACTERS]
