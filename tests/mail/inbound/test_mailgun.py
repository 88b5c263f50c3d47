# SPDX-License-Identifier: Apache-2.0
"""What only Mailgun does: a signature among the fields that does not cover the mail."""

from __future__ import annotations

import json

import pytest

from spotwatch.errors import ConfigError
from spotwatch.mail.inbound.mailgun import Config
from tests.mail.inbound.requests_mailgun import KEY, OLD_KEY, form, good, signed
from tests.mail.inbound.services import MAIL, NOW, bench, deliver, refusal

PARSED = (
    ("from", "DigitalOcean <support@digitalocean.com>"),
    ("subject", "Your Spot Droplet will be reclaimed"),
    ("To", "me@example.com"),
    ("Date", "Sun, 29 Nov 2026 11:59:00 +0000"),
    ("Message-Id", "<one@digitalocean.com>"),
    ("body-plain", "Droplet spot-trainer-01 goes at 2026-11-29 14:00 UTC."),
)


async def test_the_signature_proves_nothing_of_the_mail() -> None:
    """It covers time and token only, and says so."""
    delivery = await deliver(bench("mailgun").service, good())
    assert not delivery.covers_body
    assert delivery.signed_at == NOW


@pytest.mark.hostile(13)
async def test_the_same_token_with_another_mail_is_the_same_replay() -> None:
    """Who catches a request cannot put another mail into it twice: the token counts, not the body."""
    service = bench("mailgun").service
    first = await deliver(service, good())
    second = await deliver(service, form(("body-mime", MAIL + b"more"), *signed().items()))
    assert first.replay_id == second.replay_id
    assert first.raw != second.raw


@pytest.mark.hostile(9)
async def test_both_keys_count_during_a_rotation() -> None:
    """The old key is heard while it is configured, and no longer after."""
    request = form(("body-mime", MAIL), *signed(OLD_KEY).items())
    await deliver(bench("mailgun").service, request)
    later = bench("mailgun", config=Config(signing_key_files=("new",)))
    assert (await refusal(later.service, request)).result == "unsigned"


@pytest.mark.hostile(10)
@pytest.mark.parametrize("stamp", ["", "nan", "inf", "1.5", "-1", "1" * 13, "1e9", " 1796000000"])
async def test_a_timestamp_of_another_form_is_unsigned(stamp: str) -> None:
    """Whole seconds in ASCII digits, rightly signed or not."""
    verdict = await refusal(
        bench("mailgun").service, form(("body-mime", MAIL), *signed(timestamp=stamp).items())
    )
    assert (verdict.status, verdict.result) == (401, "unsigned")


@pytest.mark.hostile(10)
@pytest.mark.parametrize("age_seconds", [30601, -301, 86400 * 365])
async def test_a_stamp_of_another_time_is_a_replay(age_seconds: int) -> None:
    """Eight hours and a half back, five minutes ahead."""
    stamp = int(NOW.timestamp()) - age_seconds
    verdict = await refusal(
        bench("mailgun").service, form(("body-mime", MAIL), *signed(timestamp=stamp).items())
    )
    assert (verdict.status, verdict.result) == (401, "replayed")


@pytest.mark.parametrize("after_minutes", [10, 25, 55, 115, 240, 480])
async def test_a_repetition_with_the_first_stamp_is_heard(after_minutes: int) -> None:
    """Mailgun repeats for eight hours, and does not say that it signs anew."""
    stamp = int(NOW.timestamp()) - after_minutes * 60
    request = form(("body-mime", MAIL), *signed(timestamp=stamp).items())
    assert (await deliver(bench("mailgun").service, request)).raw == MAIL


@pytest.mark.hostile(20)
async def test_of_fields_given_twice_the_last_count() -> None:
    """Mailgun appends its own after those of the mail."""
    request = form(("signature", "0" * 64), ("token", "evil"), ("body-mime", MAIL), *signed().items())
    assert (await deliver(bench("mailgun").service, request)).raw == MAIL


async def test_parsed_fields_make_a_mail_that_proves_nothing() -> None:
    """Without `mime` in the address the mail is put together again, and is not the original."""
    delivery = await deliver(bench("mailgun").service, form(*PARSED, *signed().items()))
    assert not delivery.is_original
    for _, value in PARSED[:5]:
        assert value.encode() in delivery.raw


async def test_what_store_posts_is_refused_for_good() -> None:
    """There is an address in it, and nothing is fetched; 406 ends the repetitions."""
    where = json.dumps([{"url": "http://169.254.169.254/latest/", "size": 1}])
    request = form(("attachments", where), ("message-url", "http://evil.example/"), *signed().items())
    verdict = await refusal(bench("mailgun").service, request)
    assert (verdict.status, verdict.result) == (406, "malformed")


def test_no_key_is_refused_before_anything_starts() -> None:
    """A service without a key would hear anybody."""
    with pytest.raises(ValueError, match="has no signing_key_files; copy"):
        Config()
    with pytest.raises(ConfigError, match="empty"):
        bench("mailgun", secrets={"new": KEY, "old": ""})
