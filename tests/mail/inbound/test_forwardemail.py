# SPDX-License-Identifier: Apache-2.0
"""What only ForwardEmail does: a signature without a time, and mailparser's objects."""

from __future__ import annotations

from typing import Any

import pytest

from spotwatch.errors import ConfigError
from spotwatch.mail.inbound.forwardemail import Config
from spotwatch.mail.reading import read_mail
from tests.mail.inbound.requests_forwardemail import KEY, OLD_KEY, good, request, row
from tests.mail.inbound.services import bench, deliver, refusal


async def test_no_time_is_signed() -> None:
    """The mail's own date has to limit its age."""
    delivery = await deliver(bench("forwardemail").service, good())
    assert delivery.signed_at is None
    assert delivery.covers_body


@pytest.mark.hostile(9)
async def test_both_keys_count_during_a_rotation() -> None:
    """The old key is heard while it is configured, and no longer after."""
    made = request(row(), OLD_KEY)
    await deliver(bench("forwardemail").service, made)
    later = bench("forwardemail", config=Config(key_files=("new",)))
    assert (await refusal(later.service, made)).result == "unsigned"


@pytest.mark.parametrize(
    "changes", [{}, {"html": "<p>spot-trainer-01 goes</p>", "text": None}, {"html": None}]
)
async def test_without_the_raw_mail_one_is_composed(changes: dict[str, Any]) -> None:
    """`?raw=false` leaves what mailparser made of it, false for a mail without HTML included."""
    delivery = await deliver(bench("forwardemail").service, request(row(raw=None, **changes)))
    assert not delivery.is_original
    mail = read_mail(delivery.raw)
    assert (mail.sender, mail.recipients, mail.message_id) == (
        "support@digitalocean.com",
        ("me@example.com",),
        "<one@digitalocean.com>",
    )
    assert "spot-trainer-01" in mail.text


@pytest.mark.hostile(21, 23)
@pytest.mark.parametrize(
    "document",
    [
        [],
        None,
        row(raw=5),
        row(raw=None, text=None),
        row(raw=None, text=None, html=None),
        row(raw=None, text=5),
        row(raw=None, **{"from": []}),
        row(raw=None, to="me@example.com"),
        row(raw=None, messageId={}),
    ],
)
async def test_signed_nonsense_is_malformed(document: Any) -> None:
    """A signed body of other types is refused for good."""
    verdict = await refusal(bench("forwardemail").service, request(document))
    assert (verdict.status, verdict.result) == (400, "malformed")


def test_no_key_is_refused_before_anything_starts() -> None:
    """A service without a key would hear anybody."""
    with pytest.raises(ValueError, match="has no key_files; set a webhook signature"):
        Config()
    with pytest.raises(ConfigError, match="empty"):
        bench("forwardemail", secrets={"new": KEY, "old": ""})
