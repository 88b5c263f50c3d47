# SPDX-License-Identifier: Apache-2.0
"""An account's list of Droplets, as the API gives it, or does not.

It holds no test.
"""

from __future__ import annotations

from spotwatch.errors import ProviderError
from spotwatch.mail.model import Droplet


class PlayedApi:
    """An API that says what it is told to, and fails once it is told how."""

    def __init__(self, *droplets: Droplet) -> None:
        self.droplets = droplets
        self.error: ProviderError | None = None

    async def __call__(self) -> tuple[Droplet, ...]:
        """Return all Droplets."""
        if self.error is not None:
            raise self.error
        return self.droplets
