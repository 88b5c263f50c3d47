# SPDX-License-Identifier: Apache-2.0
"""Workers of loaders that a library or a program has made outlive a signal to the whole process group.

What a shield is, is known in `spotwatch.train.shield`. It starts no worker.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from spotwatch.train.shield import worker_init


def shield(loader: Any) -> None:
    """Shield the workers that a DataLoader of torch's or Accelerate's will start; once is enough."""
    base = getattr(loader, "base_dataloader", loader)
    own = getattr(base, "worker_init_fn", None)
    workers = getattr(base, "num_workers", 0) if hasattr(base, "worker_init_fn") else 0
    if workers > 0 and not isinstance(own, Shield):
        base.worker_init_fn = Shield(own)


@dataclass(frozen=True, slots=True)
class Shield:
    """A `worker_init_fn` that shields, and then calls the one that was there.

    Args:
        own: that one, or None.
    """

    own: Any

    def __call__(self, worker_id: int) -> None:
        """Begin a worker."""
        worker_init(worker_id)
        if self.own is not None:
            self.own(worker_id)
