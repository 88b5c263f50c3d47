# SPDX-License-Identifier: Apache-2.0
"""Addresses and dates in rare and valid forms, and in usual ones: each is read where it has one meaning."""

from __future__ import annotations

from datetime import datetime

import pytest

from spotwatch.mail.addresses import read_mailbox, read_mailboxes
from spotwatch.mail.headers import read_date

ME = "me@example.com"
OTHER = "x@evil.example"


@pytest.mark.parametrize(
    "value",
    [
        f"{ME} (John)",
        f"John (home) <{ME}>",
        f"(a (nested) \\) comment) {ME}",
        f"{ME} <{ME}>",
        f"'{ME}' <Me@Example.com>",
        f"'{ME}' <{ME}> (John)",
        f"DigitalOcean: Notices <{ME}>",
        f'"DigitalOcean: [Notices]" <{ME}>',
        f"DigitalOcean [Spot] <{ME}>",
        f'"a (no comment" <{ME}>',
    ],
)
def test_one_address_in_another_form_is_read(value: str) -> None:
    """In From and in To."""
    assert read_mailbox(value) == ME
    assert read_mailboxes(value) == ((ME,), True)


@pytest.mark.hostile(39)
@pytest.mark.parametrize(
    "value",
    [
        f"{ME} <{OTHER}>",
        f"'{ME}' <{OTHER}>",
        f"'{ME} <{ME}>",
        f"{ME} ({OTHER})",
        f"{ME} (<{OTHER}>)",
        f"({ME}) {OTHER}",
        f"{ME} (open",
        f"{ME} closed)",
        f"me (x) @example.com <{OTHER}>",
        f"me(x)@example.com {OTHER}",
        f'"open <{ME}>',
        f"a: {ME};",
        f"a: b <{ME}>;",
        f"<{OTHER}:{ME}>",
        f"[{OTHER}] <{ME}>",
        f"a:{OTHER} <{ME}>",
        f"{ME}; {OTHER}",
        f"{ME},",
        f"<{ME}> <{OTHER}>",
        f"<{ME}>:<{OTHER}>",
        f"{ME} <{ME}> <{OTHER}>",
        "()" * 2000 + "<" * 50,
        "(" * 4000,
        ":" * 4000,
    ],
)
def test_what_two_readers_could_take_for_two_senders_is_none(value: str) -> None:
    """No new form brings another address into From."""
    assert read_mailbox(value) == ""


@pytest.mark.parametrize(
    ("value", "addresses"),
    [
        (f"{ME},", (ME,)),
        (f'"O\'Neil" <{ME}>, , b@c.d', (ME, "b@c.d")),
        (f"Team: {ME};", (ME,)),
        (f'Team: {ME}, "B; C:" <b@c.d>; , e@f.g', (ME, "b@c.d", "e@f.g")),
        (f"Team:;, {ME}", (ME,)),
        ("undisclosed-recipients: ;", ()),
        ('"a: b, c;" <b@c.d>', ("b@c.d",)),
        ("", ()),
    ],
)
def test_groups_and_one_comma_too_many_are_read(value: str, addresses: tuple[str, ...]) -> None:
    """As RFC 5322 has them, sections 3.4 and 4.4."""
    assert read_mailboxes(value) == (addresses, True)


@pytest.mark.parametrize(
    "value",
    [
        f"Team: {ME}; <{OTHER}>",
        f"Team: {ME}; b@c.d",
        f"a@b.c: {ME};",
        f"Team: a: {ME};",
        f"{ME}; b@c.d",
        f"{ME} <{OTHER}>",
        f"{ME} ({OTHER})",
        "a (b",
    ],
)
def test_a_list_that_is_not_understood_is_not_called_so(value: str) -> None:
    """What is left of it makes the mail weak."""
    assert not read_mailboxes(value)[1]


@pytest.mark.hostile(53)
@pytest.mark.parametrize(
    ("value", "at"),
    [
        ("Mon, 30 Nov 26 00:19:00 +0000", "2026-11-30T00:19:00"),
        ("Tue, 30 Nov 99 00:19:00 +0000", "1999-11-30T00:19:00"),
        ("Sun, 29 Nov 2026 19:19:00 EST", "2026-11-30T00:19:00"),
        ("Sun, 29 Nov 2026 16:19:00 PST", "2026-11-30T00:19:00"),
        ("Sun, 29 Nov 2026 20:19:00 edt", "2026-11-30T00:19:00"),
        ("Monday, 30-Nov-26 00:19:00 GMT", "2026-11-30T00:19:00"),
        ("Mon , 30 Nov 2026 00:19:00 +0000", "2026-11-30T00:19:00"),
        ("Mon 30 Nov 2026 00:19:00 +0000", "2026-11-30T00:19:00"),
        ("Mon, 30 Nov 2026 00:19:00 (UTC) +0000 (UTC)", "2026-11-30T00:19:00"),
        ("Mon, 30 Nov 2026 00:19:00.123 +0000", "2026-11-30T00:19:00"),
    ],
)
def test_a_date_in_another_form_is_read(value: str, at: str) -> None:
    """Obsolete ones as RFC 5322 says, section 4.3."""
    assert read_date(value) == datetime.fromisoformat(f"{at}+00:00")


@pytest.mark.hostile(53)
@pytest.mark.parametrize(
    "value",
    [
        "Mon, 30 Nov 126 00:19:00 +0000",
        "Mon, 30 Nov 6 00:19:00 +0000",
        "Mon, 30 Nov 2026 00:19:00 BST",
        "Mon, 30 Nov 2026 00:19:00 CET",
        "Mon, 30 Nov 2026 00:19:00 A",
        "Mon, 30 Nov 2026 00:19:00 (+0000)",
        "Mon, 30 Nov 2026 00:19:00 +0000 (x",
        "30/Nov/2026 00:19:00 GMT",
    ],
)
def test_a_date_that_nobody_defines_is_none(value: str) -> None:
    """Other names of zones have more than one meaning, or none."""
    assert read_date(value) is None
