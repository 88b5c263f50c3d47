# SPDX-License-Identifier: Apache-2.0
"""Which parameters of a model are frozen: what callbacks freeze or thaw while it trains, no weights tell.

What the program itself freezes otherwise than in the life before is left as the program has it.
"""

from __future__ import annotations

import logging
from typing import Any

from spotwatch.errors import ConfigError
from spotwatch.train.state.tensors import is_sharded

log = logging.getLogger("spotwatch.train")

_SHOWN = 4


class Frozen:
    """Reads and restores it; to be tracked.

    Args:
        model: the Trainer's.
    """

    def __init__(self, model: Any) -> None:
        self._model = model
        self._at_start: list[str] | None = None
        self._saved: dict[str, list[str]] | None = None

    def state_dict(self) -> dict[str, list[str]]:
        """Return the names of what is frozen, and of what was when this life began to train."""
        if self._at_start is None:
            return self._saved or {"at_start": self._now(), "now": self._now()}
        return {"at_start": self._at_start, "now": self._now()}

    def load_state_dict(self, state: dict[str, list[str]]) -> None:
        """Keep it for `begin`, for what the Trainer's callbacks do at first comes before."""
        self._saved = state

    def begin(self) -> None:
        """Freeze and thaw what had been in the life before, before the first batch of this one; once.

        Raises:
            ConfigError: the model is sharded.
        """
        if self._at_start is None:
            self._at_start = self._now()
            if self._saved is not None:
                self._restore(self._saved, self._at_start)

    def _restore(self, saved: dict[str, list[str]], now: list[str]) -> None:
        others = set(saved["now"]).symmetric_difference(saved["at_start"])
        is_the_programs = set(saved["at_start"]).symmetric_difference(now)
        wanted = {
            name: one
            for name, one in self._model.named_parameters()
            if name in others and name not in is_the_programs
        }
        if not wanted:
            return
        told = f"{', '.join([*wanted][:_SHOWN])}{', ...' if len(wanted) > _SHOWN else ''}"
        if any(is_sharded(one) for one in wanted.values()):
            raise ConfigError(
                f"{told}: frozen or thawed while it trained, which FSDP2 does not see once it has sharded a "
                f"model: do that where the program makes the model, before training"
            )
        for name, one in wanted.items():
            one.requires_grad_(name not in saved["now"])
        log.info("frozen or trained again as when it was saved: %s", told)

    def _now(self) -> list[str]:
        return [name for name, one in self._model.named_parameters() if not one.requires_grad]
