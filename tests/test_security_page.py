# SPDX-License-Identifier: Apache-2.0
"""SECURITY.md as far as code can contradict it: services, how long a proof holds, what is remembered."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path

import pytest

from spotwatch.config import Mail, Webhook
from spotwatch.mail.inbound import load, mailgun, names, ses
from spotwatch.providers._do_push import UNSYNCED_SECONDS
from spotwatch.webhooks import CAPACITY, KEEP_SECONDS

PAGE = (Path(__file__).parents[1] / "SECURITY.md").read_text(encoding="utf-8")
ROWS = [line for line in PAGE.splitlines() if line.startswith("|")]


def _default(config: type, name: str) -> object:
    return next(one.default for one in fields(config) if one.name == name)


@pytest.mark.parametrize("service", names())
def test_each_service_has_a_row(service: str) -> None:
    """Whoever adds one says what its proof covers, and for how long it is good."""
    assert load(service).name == service
    assert [row for row in ROWS if f"`{service}`" in row.split("|")[1]]


def test_the_times_are_those_of_the_code() -> None:
    """A limit that is changed is changed on the page too."""
    good_for = {
        row.split("`")[1]: row.split("|")[4].strip() for row in ROWS if row.count("|") == 5 and "`" in row
    }
    assert good_for["mailgun"] == "8 h 30 min"
    assert _default(mailgun.Config, "max_age_seconds") == 8.5 * 3600
    assert good_for["ses"] == "an hour"
    assert _default(ses.Config, "max_age_seconds") == 3600
    assert good_for["sendgrid"] == "five minutes"
    assert Webhook().tolerance_seconds == 300
    assert "(two hours, for a flush only, while this machine's clock is not set)" in PAGE
    assert UNSYNCED_SECONDS == 7200
    assert "older than three hours it stops nothing" in PAGE
    assert Mail().max_age_seconds == KEEP_SECONDS == 3 * 3600
    assert f"up to {CAPACITY:,}" in PAGE
