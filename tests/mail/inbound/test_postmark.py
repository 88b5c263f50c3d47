# SPDX-License-Identifier: Apache-2.0
"""What only Postmark does: a password instead of a signature, and the mail in JSON."""

from __future__ import annotations

from typing import Any

import pytest

from spotwatch.errors import ConfigError
from spotwatch.mail.inbound.postmark import Config
from spotwatch.mail.reading import read_mail
from spotwatch.received import Received
from tests.mail.inbound.requests_postmark import OLD_PASSWORD, PASSWORD, good, request, row
from tests.mail.inbound.services import MAIL, bench, deliver, refusal


async def test_the_password_proves_nothing_of_the_mail() -> None:
    """It is the connection's: what a stranger mailed comes through it as what DigitalOcean mailed."""
    assert not (await deliver(bench("postmark").service, good())).covers_body


async def test_who_has_no_password_is_challenged() -> None:
    """Some senders send theirs only after a challenge."""
    verdict = await refusal(bench("postmark").service, Received(headers={}, body=good().body))
    assert verdict.status == 401
    assert verdict.headers == {"WWW-Authenticate": 'Basic realm="spotwatch"'}


@pytest.mark.hostile(9)
async def test_both_passwords_count_during_a_rotation() -> None:
    """The old one is heard while it is configured, and no longer after."""
    made = request(row(), OLD_PASSWORD)
    await deliver(bench("postmark").service, made)
    later = bench("postmark", config=Config(password_files=("new",)))
    assert (await refusal(later.service, made)).result == "unsigned"


async def test_without_the_raw_mail_one_is_composed() -> None:
    """What Postmark parsed makes a mail that is not the original; its Message-ID is the header's."""
    delivery = await deliver(bench("postmark").service, request(row(RawEmail=None)))
    assert not delivery.is_original
    mail = read_mail(delivery.raw)
    assert (mail.subject, mail.sender, mail.recipients, mail.message_id) == (
        "Your Spot Droplet will be reclaimed",
        "support@digitalocean.com",
        ("me@example.com",),
        "<one@digitalocean.com>",
    )
    assert "spot-trainer-01" in mail.text


@pytest.mark.hostile(24)
@pytest.mark.parametrize("attachment", [{"Name": "a", "Data": "eA=="}, {"Name": "a", "Content": "eA=="}])
async def test_attachments_of_either_form_are_left_alone(attachment: dict[str, str]) -> None:
    """Test payloads say Data where real ones say Content; neither is read."""
    assert (await deliver(bench("postmark").service, request(row(Attachments=[attachment])))).raw == MAIL


@pytest.mark.hostile(21, 23)
@pytest.mark.parametrize(
    "document",
    [
        [],
        "text",
        None,
        row(MessageID=None),
        row(MessageID=5),
        row(MessageID="../x"),
        row(RawEmail=["x"]),
        row(RawEmail=None, Headers=None),
        row(RawEmail=None, Headers={"a": "b"}),
        row(RawEmail=None, Headers=["x"]),
        row(RawEmail=None, Headers=[{"Name": 5, "Value": "x"}]),
        row(RawEmail=None, From=[]),
        row(RawEmail=None, TextBody=5),
    ],
)
async def test_signed_nonsense_ends_the_repetitions(document: Any) -> None:
    """403 is what Postmark gives up on."""
    verdict = await refusal(bench("postmark").service, request(document))
    assert (verdict.status, verdict.result) == (403, "malformed")


@pytest.mark.hostile(21)
@pytest.mark.parametrize(
    "body", [b"[" * 20000, b'{"a": NaN}', b'{"a": 1, "a": 2}', b"\xff\xfe{", b"", b"1e999"]
)
async def test_what_is_no_json_ends_the_repetitions(body: bytes) -> None:
    """With the right password and the wrong bytes."""
    made = Received(headers=good().headers, body=body)
    assert (await refusal(bench("postmark").service, made)).status == 403


@pytest.mark.parametrize("text", ["only-a-password-of-some-length", ":0123456789abcdef", "user:short"])
def test_a_password_that_is_none_is_refused(text: str) -> None:
    """Without a user, or shorter than 16 characters, it is refused before anything starts."""
    with pytest.raises(ConfigError, match="write USER:PASSWORD"):
        bench("postmark", secrets={"new": text, "old": PASSWORD})


def test_no_password_is_refused_before_anything_starts() -> None:
    """A service without a password would hear anybody."""
    with pytest.raises(ValueError, match="has no password_files; put USER:PASSWORD"):
        Config()
