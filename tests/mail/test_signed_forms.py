# SPDX-License-Identifier: Apache-2.0
"""Genuine mails whose form was taken for a doubt: strong where the signer says how to read them.

That an unsigned header changes no word unnoticed is tested for all forms beside this file.
"""

from __future__ import annotations

from datetime import timedelta
from email.utils import format_datetime

import pytest

from spotwatch.config import Mail as Rules
from spotwatch.mail.decoding import other_encodings, to_text
from spotwatch.mail.desk import MailDesk
from spotwatch.mail.keys import KeyAnswer
from spotwatch.mail.model import Droplet, Judgement
from spotwatch.mail.patterns import default_patterns
from spotwatch.mail.reading import read_mail
from spotwatch.model import Evidence
from spotwatch.testing import EPOCH
from tests.mail.making import ACCOUNT, SIGNER, delivered
from tests.mail.signing import HEADERS

NAME = "spot-trainer-01"
SAYS = f"Your Spot Droplet {NAME} will be reclaimed at {EPOCH + timedelta(hours=1):%Y-%m-%d %H:%M} UTC."
LINK = "https://click.digitalocean.com/?"
UNSIGNED_ENCODING = tuple(name for name in HEADERS if name != "content-transfer-encoding")
UNSIGNED_FORM = tuple(name for name in UNSIGNED_ENCODING if name != "content-type")


class Answers:
    """The name servers' answers."""

    async def fetch(self, names: object) -> dict[str, KeyAnswer]:
        """Return all of them."""
        del names
        return dict(SIGNER.answers)


def written(
    body: str,
    *,
    kind: str = "text/plain; charset=utf-8",
    encoding: str = "7bit",
    to: str = ACCOUNT,
    sender: str = "DigitalOcean <support@digitalocean.com>",
) -> bytes:
    """Return a mail that nobody has signed yet."""
    return (
        f"From: {sender}\r\nTo: {to}\r\nSubject: Your Spot Droplet will be reclaimed\r\n"
        f"Date: {format_datetime(EPOCH)}\r\nMessage-ID: <one@digitalocean.com>\r\nMIME-Version: 1.0\r\n"
        f"Content-Type: {kind}\r\nContent-Transfer-Encoding: {encoding}\r\n\r\n{body}\r\n"
    ).encode()


async def judged(raw: bytes, *, account: str = ACCOUNT) -> Judgement:
    """Return what follows for the Droplet."""
    desk = MailDesk(
        Rules(account_addresses=(account,)),
        default_patterns(),
        Answers(),
        trust_relay=False,
        limit_seconds=20.0,
    )
    droplet = Droplet(droplet_id=1, names=frozenset({NAME}))
    [found] = await desk.consider(delivered(raw, received_at=EPOCH), [droplet], EPOCH)
    return found


PARTS = f"--b\r\n\r\n{SAYS}\r\n--b\r\nDate: x\r\n\r\nfoot\r\n--b--\r\n"


@pytest.mark.parametrize(
    ("body", "kind"),
    [
        (f"{SAYS}\r\n\r\n{LINK}t=3Dfa9\r\n", "text/plain"),
        (f"{SAYS}\r\n\r\nset CHECKPOINT=\r\nfoo\r\n", "text/plain"),
        (f"{SAYS}\r\n\r\n{LINK}upn=abc=\r\nTeam\r\n", "text/plain"),
        (SAYS, "text/html"),
        (f"<b>Notice</b>\r\n{SAYS}", "text/plain"),
        (PARTS, "multipart/mixed; boundary=b"),
    ],
)
async def test_where_the_signer_says_how_to_read_it_there_is_no_doubt(body: str, kind: str) -> None:
    """With both headers signed it is strong; with either left open somebody may have changed it."""
    raw = written(body, kind=kind)
    found = await judged(SIGNER.sign(raw))
    assert (found.evidence, found.is_kept) == (Evidence.STRONG, False), found.detail
    for open_form in (UNSIGNED_ENCODING, UNSIGNED_FORM):
        assert (await judged(SIGNER.sign(raw, headers=open_form))).evidence is Evidence.WEAK


async def test_what_is_signed_is_read_in_that_way_only() -> None:
    """Read as quoted-printable, the link and the line under it would name another Droplet."""
    raw = written("spot-1=\r\n0 and =3D\r\n")
    assert "spot-10" in read_mail(raw).text
    signed = read_mail(raw, is_form_signed=True)
    assert (signed.text, signed.problems) == ("spot-1=\n0 and =3D", ())


@pytest.mark.hostile(38)
async def test_a_signed_form_mends_nothing_that_is_broken() -> None:
    """Parts that are none, base64 that is none, sets that are not read."""
    for body, kind, encoding in (
        (SAYS, "multipart/mixed; boundary=b", "7bit"),
        (f"--b\r\n\r\n{SAYS}\r\n", "multipart/mixed; boundary=b", "7bit"),
        (SAYS, "application/pdf", "7bit"),
        (SAYS, "text/plain", "base64"),
        (SAYS, "text/plain; charset=utf-16", "7bit"),
    ):
        raw = SIGNER.sign(written(body, kind=kind, encoding=encoding))
        assert (await judged(raw)).evidence is Evidence.WEAK, (body, kind, encoding)


@pytest.mark.parametrize("line", [f"{LINK}upn=u001.x=", "a == b\r\nCHECKPOINT=", f"{LINK}t=3Dfa&id=x7"])
async def test_a_link_that_quoted_printable_could_not_hold_is_no_doubt(line: str) -> None:
    """A "=" that is no escape says that the text is plain, whatever is signed of it."""
    raw = SIGNER.sign(written(f"{SAYS}\r\n\r\n{line}\r\nTeam"), headers=UNSIGNED_FORM)
    assert (await judged(raw)).evidence is Evidence.STRONG
    changed = raw.replace(b"Encoding: 7bit", b"Encoding: quoted-printable")
    assert (await judged(changed)).evidence is Evidence.WEAK


@pytest.mark.hostile(38)
@pytest.mark.parametrize("body", [b"x=\r\ny", b"a=3Db", b"=C3=BC x=\r\ny", b"a =\r\nb = \r\nc=3D"])
def test_what_an_encoder_wrote_looks_like_it_and_nothing_else(body: bytes) -> None:
    """Under another declaration it is noticed, and under its own it is not."""
    assert other_encodings(body, "quoted-printable") == ()
    assert other_encodings(body, "7bit") == ("quoted-printable",)


@pytest.mark.parametrize("charset", ["gb2312", "GBK", "big5", "euc-kr", "koi8-r"])
def test_ascii_is_ascii_in_sets_that_are_not_read(charset: str) -> None:
    """Beyond it they are a problem."""
    assert to_text(b"spot-1", charset) == ("spot-1", "")
    assert to_text("spot\u00a01".encode(), charset).problem
    for other in ("utf-16", "hz-gb-2312", "iso-2022-jp", "utf-7", "rot13"):
        assert to_text(b"spot-1", other).problem


@pytest.mark.parametrize(
    ("to", "account", "is_strong"),
    [
        ("Owner+spot@Example.com", ACCOUNT, True),
        ("owner+spot@example.com", "owner+spot@example.com", True),
        ("owner+other@example.com", "owner+spot@example.com", False),
        ("owner@example.com", "owner+spot@example.com", False),
        ("+owner@example.com", ACCOUNT, False),
        (f"Team: {ACCOUNT};", ACCOUNT, True),
        (f"{ACCOUNT} (Owner)", ACCOUNT, True),
    ],
)
async def test_an_address_is_ours_with_any_tag_unless_ours_has_one(
    to: str, account: str, *, is_strong: bool
) -> None:
    """`owner+spot@` arrives at `owner@`; who names a tag has accounts that differ by it."""
    found = await judged(SIGNER.sign(written(SAYS, to=to)), account=account)
    assert (found.evidence is Evidence.STRONG) is is_strong


@pytest.mark.parametrize(
    "sender", ["DigitalOcean (no reply)", "DigitalOcean: Notices", "DigitalOcean [Spot]"]
)
async def test_a_usual_name_of_the_sender_is_no_doubt(sender: str) -> None:
    """Only the address counts."""
    raw = SIGNER.sign(written(SAYS, sender=f"{sender} <support@digitalocean.com>"))
    assert (await judged(raw)).evidence is Evidence.STRONG


@pytest.mark.parametrize(
    ("sender", "why"),
    [
        ("support@digitalocean.com <x@evil.example>", "its From is not one plain address"),
        ("x@evil.example", "it does not sign for its sender x@evil.example"),
    ],
)
async def test_why_no_signature_holds_is_said(sender: str, why: str) -> None:
    """Or people look for a fault in DNS that is none."""
    found = await judged(SIGNER.sign(written(SAYS, sender=sender)))
    assert "no signature of digitalocean.com holds: " in found.detail
    assert why in found.detail
