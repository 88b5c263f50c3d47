# SPDX-License-Identifier: Apache-2.0
"""Whose words a mail holds: its own, quoted ones, or another mail's that a person passes on."""

from __future__ import annotations

import pytest

from spotwatch.mail.model import Mail
from spotwatch.mail.quoting import split_quotes
from spotwatch.mail.reading import read_mail

_OTHER = "Your Spot Droplet spot-1 will be reclaimed."


def _read(subject: str, body: str, *, is_html: bool = False) -> Mail:
    kind = "text/html" if is_html else "text/plain"
    return read_mail(f"From: a@b.c\nSubject: {subject}\nContent-Type: {kind}\n\n{body}\n".encode())


@pytest.mark.hostile(44)
@pytest.mark.parametrize(
    "above",
    [
        "Begin forwarded message:\n\nFrom: DigitalOcean <support@digitalocean.com>\nSubject: x\nDate: y\n",
        "---------- Forwarded message ---------\nFrom: support@digitalocean.com\nDate: x\n",
        "----- Forwarded Message -----",
        "-----Original Message-----\nFrom: support@digitalocean.com\n",
        "________________________________\nFrom: DigitalOcean\nSent: Sunday\nTo: me\nSubject: x\n",
        "*From:* DigitalOcean\n*Date:* Sunday\n*To:* me\n*Cc:* you\n*Subject:* x\n",
        "Von: DigitalOcean\nGesendet: Sonntag\nAn: mich\nBetreff: x\n",
        "De : DigitalOcean\nEnvoyé : dimanche\nÀ : moi\nObjet : x\n",
    ],
)
def test_a_mail_passed_on_by_a_person_is_quoted_and_forwarded(above: str) -> None:
    """Whatever the program puts above it; what follows are not the sender's own words."""
    mail = _read("have a look", f"See below.\n\n{above}\n{_OTHER}")
    assert mail.is_forwarded
    assert _OTHER in mail.quoted
    assert mail.text.startswith("See below.")
    assert _OTHER not in mail.text


@pytest.mark.hostile(44)
@pytest.mark.parametrize(
    "page",
    [
        f"<p>See below.<blockquote type=cite><p>{_OTHER}</blockquote>",
        f"<p>See below.<div>---------- Forwarded message ---------<br>From: x<br></div><div>{_OTHER}</div>",
        f"<p>See below.<p><b>From:</b> x<br><b>Sent:</b> y<br>To: me<br>Subject: z</p><div>{_OTHER}</div>",
        f"<p>See below.<table><tr><td>From:<td>x<tr><td>Date:<td>y<tr><td>Subject:<td>s</table>{_OTHER}",
    ],
)
def test_a_mail_passed_on_as_a_page_is_quoted(page: str) -> None:
    """A block quote, a line of dashes, and Outlook's table as text or as a table."""
    mail = _read("Fwd: Spot", page, is_html=True)
    assert (mail.text, mail.is_forwarded, mail.problems) == ("See below.", True, ())
    assert mail.quoted.endswith(_OTHER)


@pytest.mark.hostile(44)
@pytest.mark.parametrize("prefix", ["Fwd:", "FW:", "fwd :", "WG:", "TR:", "Fwd[2]:", "=?utf-8?q?Fwd=3A?="])
def test_a_subject_says_that_a_mail_is_passed_on(prefix: str) -> None:
    """In the usual languages; a word that only begins like it does not."""
    assert _read(f"{prefix} Spot", _OTHER).is_forwarded
    assert not _read("Fwdx: Spot", _OTHER).is_forwarded
    assert not _read("Training: Spot", _OTHER).is_forwarded


@pytest.mark.hostile(45)
@pytest.mark.parametrize(
    "quote",
    [
        f"> {_OTHER}",
        f">> > {_OTHER}",
        f"On Sat, Nov 28, 2026 at 4:12 PM DigitalOcean\n<support@digitalocean.com> wrote:\n\n> {_OTHER}",
        f"On 28 Nov 2026, DigitalOcean wrote:\n{_OTHER}",
        f"-----Original Message-----\nFrom: x\n{_OTHER}",
        f"From: x\nSent: y\nTo: z\nSubject: s\n\n{_OTHER}",
    ],
)
def test_an_answer_quotes_and_passes_nothing_on(quote: str) -> None:
    """`Re:` with the same tables and lines is an answer; the quoted words are not its own."""
    mail = _read("Re: Spot", f"Thanks, noted.\n\n{quote}")
    assert (mail.text, mail.is_forwarded) == ("Thanks, noted.", False)
    assert _OTHER in mail.quoted
    assert ">" not in mail.quoted.replace("<support@digitalocean.com>", "")


def test_words_between_quotes_are_own() -> None:
    """An answer below each quoted line is read whole; the line that says who wrote goes with the quote."""
    split = split_quotes("On May 1 A wrote:\n> one\nmine\n\n> two\nmine too\nOn May 2 B wrote:\n> three")
    assert split.own == "mine\n\nmine too"
    assert split.quoted == "On May 1 A wrote:\none\ntwo\nOn May 2 B wrote:\nthree"


@pytest.mark.parametrize(
    "text",
    [
        "On Monday we wrote to you.",
        "On Monday we wrote this:\n\nhello",
        "Sunday, November 29, 2026 13:50 UTC\nhello",
        "Reclaim time, 2026-11-29 13:50 UTC\nhello",
        "| spot-1 | 13:50 |\nhello",
        "From: 2026-11-29 16:12 UTC\nTo: 2026-11-29 18:12 UTC\nWe are sorry.",
        "From: the office\nWe are sorry.",
        "-- \nTeam DigitalOcean",
        "1 > 0",
        "Forwarded message rates",
    ],
)
def test_a_notice_that_looks_a_little_like_a_quote_is_none(text: str) -> None:
    """A window from one time to another is not a table of headers."""
    split = split_quotes(text)
    assert (split.own, split.quoted, split.is_passed_on) == (text.strip(), "", False)


def test_signs_of_lists_go_and_words_stay() -> None:
    """A name in a list stands alone on its line; a dash in front of a number is no bullet."""
    assert (
        split_quotes("* spot-1\n\u2022 spot-2\n- spot-3\n-5\n*bold*").own
        == "spot-1\nspot-2\nspot-3\n-5\n*bold*"
    )


@pytest.mark.hostile(45)
@pytest.mark.parametrize(
    "above",
    [
        "Am 29.11.2026 um 12:00 schrieb Mallory:\n\n",
        "Le 29 nov. 2026, Mallory a écrit :\n",
        "Mallory said\n\n",
        "somebody wrote:\n",
        "Mallory (Nov 29, 12:00 UTC)\n",
        "Mallory Smith, Nov 29, 2026, 12:00 UTC\n\n",
        "Mallory (mallory@evil.example)\n\n",
        "Mallory <mallory@evil.example>\n",
        "--- begin report ---\n",
        "----- Begin report -----\n",
        "##- Please type your reply above this line -##\n\n",
        "    ",
        "    Well, this is how it goes.\n    ",
        "\t",
        "| ",
        "> | ",
    ],
)
def test_words_of_others_are_quoted_however_it_is_shown(above: str) -> None:
    """Who said it, where it begins, a bar in front, or set in as a paragraph."""
    mail = _read("Spot", f"See below.\n\n{above}{_OTHER}")
    assert _OTHER not in mail.text
    assert _OTHER in mail.quoted
    assert not mail.is_forwarded


def test_a_list_that_is_set_in_is_own() -> None:
    """So is a mail of which every paragraph is set in."""
    assert "spot-1" in _read("Spot", "Affected Droplets:\n\n    spot-1\n    spot-2").text
    assert _read("Spot", f"    Hello,\n\n    {_OTHER}").text.endswith(_OTHER)
