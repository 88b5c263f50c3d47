# SPDX-License-Identifier: Apache-2.0
"""The notice of what is said without proof: a flush, once in ten minutes at most, whatever it says.

Its times mean nothing: no forged mail may keep the next one from being heard. It moves nothing that is
proven.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any, ClassVar

from spotwatch.model import JSON, Evidence, from_rfc3339, to_rfc3339
from spotwatch.providers._do_slot import Claim, Slot

LEAST_WEAK = timedelta(seconds=600)
"""Between the beginnings of two weak notices: each is flushed, and who forges mail must not make a trainer
save more often."""
_MAX_HEARD = 64


class WeakSlot(Slot):
    """The notice that follows from claims without proof."""

    evidence: ClassVar[Evidence] = Evidence.WEAK
    word: ClassVar[str] = "weak"

    def __init__(self) -> None:
        super().__init__()
        self._heard_at: datetime | None = None
        self._heard: tuple[str, ...] = ()

    def put(self, claim: Claim, owner: int) -> bool:
        """Open another notice for each message, but not more often than every ten minutes."""
        if claim.message and claim.message in self._heard:
            return False
        # Its date may be anything; when it came is certain.
        signed_at = min(claim.signed_at, claim.received_at)
        heard_at = max(signed_at, self._heard_at or signed_at)
        known = self.notice
        # Either way: a clock that was set back must not keep the next one waiting for longer.
        if known is not None and abs(claim.received_at - known.seen_at) < LEAST_WEAK:
            self._heard_at = heard_at
            return False
        self.end()
        # A date that anybody can write could be that of a notice long forgotten here, and closed elsewhere.
        self.open(replace(claim, at=None, signed_at=signed_at), owner, named_after=claim.received_at)
        self._heard_at = heard_at
        if claim.message:
            self._heard = (*self._heard, claim.message)[-_MAX_HEARD:]
        return True

    def is_older_than(self, moment: datetime) -> bool:
        """Tell whether all that is in force was said before `moment`, or nothing is in force."""
        return self._heard_at is None or self._heard_at <= moment

    def end(self) -> bool:
        """End the notice in force, and tell whether there was one."""
        has_ended = super().end()
        if has_ended:
            self._heard_at = None
        return has_ended

    def to_json(self) -> dict[str, JSON]:
        """Return all of it as JSON types."""
        heard_at = None if self._heard_at is None else to_rfc3339(self._heard_at)
        return {**super().to_json(), "heard_at": heard_at, "heard": list(self._heard)}

    def load(self, row: Mapping[str, Any]) -> None:
        """Take over what `to_json` wrote.

        Raises:
            KeyError, ValueError, TypeError, AttributeError: it is none.
        """
        super().load(row)
        self._heard_at = None if row["heard_at"] is None else from_rfc3339(row["heard_at"])
        self._heard = tuple(str(one) for one in row.get("heard", ()))[-_MAX_HEARD:]
