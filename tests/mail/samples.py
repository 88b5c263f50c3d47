# SPDX-License-Identifier: Apache-2.0
"""The mails in `samples/`, what each must be taken for, and the Droplet that they may be about.

No reclaim mail of DigitalOcean is public, so these texts are our own. Maintenance notices, alerts and
subjects have the forms of mails that are quoted in public issues (nodejs/build 178, 2469, 2958,
contradb/contra 294).
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Literal

from spotwatch.mail.model import Droplet, Mail
from spotwatch.mail.reading import read_mail

FOLDER = Path(__file__).parent / "samples"
OURS = Droplet(
    droplet_id=512345678,
    names=frozenset({"spot-trainer-01"}),
    hostname="spot-trainer-01",
    addresses=frozenset({"203.0.113.7", "10.10.0.5", "2001:db8::7"}),
)
SENT_AT = datetime(2026, 11, 29, 12, tzinfo=UTC)
"""The Date of nearly all of them."""
DELAY = timedelta(seconds=20)
"""How long each was on its way."""
ADDRESS = "ops@example.org"

Follows = Literal["stop", "flush", "cancel", "weak cancel", "correction", "not_mine", "ignored"]


@dataclass(frozen=True, slots=True)
class Sample:
    """One mail, and what it must be taken for when a trusted domain has signed all of it."""

    name: str
    mail_class: str
    named: str
    """By what our Droplet is named; `others`: others are; empty: nobody is."""
    stated: str
    """`HH:MM` that the mail states, UTC; empty: none, or none is wanted."""
    follows: Follows

    def read(self) -> Mail:
        """Return the mail as read."""
        return read_mail((FOLDER / f"{self.name}.eml").read_bytes())


SAMPLES = (
    Sample("reclaim-list-at-end", "reclaim", "name", "13:50", "stop"),
    Sample("reclaim-prose-with-id", "reclaim", "id", "13:45", "stop"),
    Sample("reclaim-link-only", "reclaim", "id", "14:00", "stop"),
    Sample("reclaim-address-only", "reclaim", "address", "13:30", "flush"),
    Sample("reclaim-html-only", "reclaim", "name", "13:40", "stop"),
    Sample("reclaim-html-table", "reclaim", "name", "13:55", "stop"),
    Sample("reclaim-start-and-end", "reclaim", "name", "13:30", "stop"),
    Sample("reclaim-one-digit-hour", "reclaim", "name", "04:00", "stop"),
    Sample("reclaim-window-in-prose", "reclaim", "name", "13:20", "stop"),
    Sample("reclaim-with-tail", "reclaim", "name", "13:50", "stop"),
    Sample("reclaim-no-time", "reclaim", "name", "", "stop"),
    Sample("reclaim-500-droplets", "reclaim", "name", "13:50", "stop"),
    Sample("reclaim-multipart", "reclaim", "name", "13:50", "stop"),
    Sample("reclaim-your-droplet", "reclaim", "", "14:00", "flush"),
    Sample("reclaim-others-only", "reclaim", "others", "13:50", "not_mine"),
    Sample("numbers-that-are-no-ids", "reclaim", "", "13:50", "flush"),
    Sample("cancel", "cancel", "name", "", "cancel"),
    Sample("cancel-retelling", "cancel", "name", "", "cancel"),
    Sample("cancel-quoting", "cancel", "name", "", "cancel"),
    Sample("cancel-sent-in-error", "cancel", "name", "", "weak cancel"),
    Sample("cancel-list", "cancel", "name", "", "cancel"),
    Sample("cancel-in-part", "unclear", "name", "13:50", "flush"),
    Sample("cancel-of-another", "unclear", "name", "", "flush"),
    Sample("cancel-of-others-only", "unclear", "others", "", "not_mine"),
    Sample("cancel-conditional", "unclear", "name", "", "flush"),
    Sample("correction-earlier", "correction", "name", "13:10", "correction"),
    Sample("correction-later", "correction", "name", "13:55", "correction"),
    Sample("correction-without-time", "unclear", "name", "", "flush"),
    Sample("maintenance-2022", "other_notice", "name", "", "ignored"),
    Sample("maintenance-2020", "other_notice", "name", "", "ignored"),
    Sample("maintenance-2015", "other_notice", "name", "", "ignored"),
    Sample("maintenance-correction", "other_notice", "name", "", "ignored"),
    Sample("invoice", "other_notice", "name", "", "ignored"),
    Sample("monitoring-alert", "other_notice", "id", "", "ignored"),
    Sample("newsletter", "other_notice", "", "", "ignored"),
    Sample("unknown-naming-ours", "unclear", "name", "13:50", "flush"),
    Sample("unknown-naming-nobody", "other_notice", "", "", "ignored"),
    Sample("reply-by-person", "other", "name", "", "ignored"),
    Sample("auto-reply", "unclear", "name", "", "ignored"),
    Sample("bounce", "unclear", "name", "13:50", "ignored"),
    Sample("forward-gmail", "unclear", "name", "13:50", "flush"),
    Sample("forward-apple", "unclear", "name", "13:50", "flush"),
    Sample("forward-outlook", "unclear", "name", "13:50", "flush"),
    Sample("forward-quoted", "unclear", "name", "13:50", "flush"),
    Sample("forward-of-a-cancel", "unclear", "name", "", "flush"),
    Sample("stranger", "other", "", "", "ignored"),
)
