# SPDX-License-Identifier: Apache-2.0
"""Many more wordings: how DigitalOcean might put it, and what only sounds like it.

They stand in `wordings.txt`, and all concern one Droplet. None is real: no mail of this kind is public.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from spotwatch.mail.model import Droplet, MailClass
from spotwatch.mail.patterns import default_patterns
from spotwatch.mail.reading import read_mail
from spotwatch.mail.understanding import understand
from tests.mail.samples import DELAY, SENT_AT

OURS = Droplet(droplet_id=512345678, names=frozenset({"ml-node-3"}), addresses=frozenset({"203.0.113.7"}))
HARMLESS = frozenset({MailClass.UNCLEAR, MailClass.OTHER_NOTICE})
LINES = [
    line.split(" | ")
    for line in (Path(__file__).parent / "wordings.txt").read_text(encoding="utf-8").splitlines()
    if not line.startswith("#")
]


@pytest.mark.hostile(42, 48)
@pytest.mark.parametrize(("mail_class", "subject", "text"), LINES)
def test_a_wording_is_taken_for_what_it_is(mail_class: str, subject: str, text: str) -> None:
    """What announces or takes back names our Droplet; what only sounds like it may flush."""
    top = ("From: no-reply@digitalocean.com", "To: ops@example.org", f"Subject: {subject}")
    raw = "\n".join([*top, "Date: Sun, 29 Nov 2026 12:00:00 +0000", "", text.replace("\\n", "\n")])
    reading = understand(
        read_mail(raw.encode()), droplets=[OURS], patterns=default_patterns(), received_at=SENT_AT + DELAY
    )
    wanted = HARMLESS if mail_class == "harmless" else {mail_class}
    assert reading.mail_class in wanted
    assert reading.mentions or reading.mail_class is MailClass.OTHER_NOTICE
