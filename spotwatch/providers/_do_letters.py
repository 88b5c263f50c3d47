# SPDX-License-Identifier: Apache-2.0
"""What a letter of the mailbox claims of this Droplet, and when it is too old to claim anything.

A letter stays in the mailbox for hours after the deadline, so that it is read again by each restart; it does
not know how one is read.
"""

from __future__ import annotations

from datetime import datetime, timedelta

from spotwatch.mail.mailbox import Letter
from spotwatch.masking import escape
from spotwatch.model import Evidence
from spotwatch.providers._do_slot import KEPT_AFTER_DEADLINE, MAILBOX, WINDOW_SECONDS, Claim


def claim_of(letter: Letter, *, droplet_id: int, now: datetime, is_before_us: bool = False) -> Claim | None:
    """Return what `letter` claims; None: its time is so long past that this machine has outlived it.

    Only a letter to this Droplet's own number may be strong: a name may be another's too. And none from
    before this Droplet: the relay may have taken it for another one that was called so.
    """
    at = letter.at
    if letter.event != "cancel":
        at = at or letter.issued_at + timedelta(seconds=WINDOW_SECONDS)
        if at <= now - KEPT_AFTER_DEADLINE:
            return None
    is_strong = letter.evidence is Evidence.STRONG and letter.to.droplet_id == droplet_id and not is_before_us
    return Claim(
        event=letter.event,
        evidence=Evidence.STRONG if is_strong else Evidence.WEAK,
        at=at,
        signed_at=letter.issued_at,
        received_at=now,
        signal=MAILBOX,
        detail=escape(letter.detail),
        # A letter of a later version does not say of which mail it is.
        message=letter.message or letter.letter_id,
    )
