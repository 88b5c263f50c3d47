# SPDX-License-Identifier: Apache-2.0
"""Judgements in words: what people are told, and that no stranger speaks through it."""

from __future__ import annotations

import pytest

from spotwatch.config import Mail as Rules
from spotwatch.mail.judging import judge
from spotwatch.mail.model import Mail, Mention, Proof, Proven, Reading
from spotwatch.mail.patterns import default_patterns
from spotwatch.mail.understanding import understand
from tests.mail.judgements import AT, RULES, SIGNED, TEXT, UNSIGNED, delivered, only, written
from tests.mail.samples import OURS, SENT_AT


def test_the_lines_say_what_was_recognised_and_what_follows() -> None:
    """For `spotwatch mail test`: about ten."""
    assert only(written()).lines == (
        "class       reclaim: will-be-reclaimed",
        "names       Droplet 512345678 by its name",
        "when        2026-11-29T13:50:00.000Z, stated: 2026-11-29 13:50 UTC",
        "proof       proven; it holds",
        "From        no-reply@digitalocean.com (signed)",
        "To          ops@example.org (signed)",
        "Subject     Spot Droplet (signed)",
        "Date        2026-11-29T12:00:00.000Z (signed)",
        "Message-ID  <1@x> (signed)",
        "follows     a flush now, and a stop (save and exit) before that time",
    )


def test_the_lines_of_a_weak_mail_say_what_is_missing() -> None:
    """All of it."""
    found = only(written(message_id="", is_forwarded=True), UNSIGNED, rules=Rules())
    assert found.lines[3] == "proof       unproven; no signature"
    assert found.lines[8:] == (
        "Message-ID  missing or unreadable",
        "follows     a flush (save and go on), never a stop",
        "missing     no signature of digitalocean.com holds: no signature",
        "missing     mail.account_addresses is empty, so anybody's Droplet may be meant",
        "missing     a person has forwarded it",
    )


@pytest.mark.parametrize(
    ("mail", "proof", "line"),
    [
        (written("Lunch"), SIGNED, "nothing: it announces no reclaim"),
        (
            written("Spot Droplet spot-batch-07 will be reclaimed."),
            SIGNED,
            "nothing: it is about other Droplets",
        ),
        (written("The reclaim of spot-trainer-01 has been cancelled."), SIGNED, "the notice in force ends"),
        (
            written("The reclaim of spot-trainer-01 has been cancelled."),
            UNSIGNED,
            "nothing: without proof no notice ends",
        ),
        (
            written("The reclaim of spot-trainer-01 was postponed to 2026-11-29 13:55 UTC."),
            SIGNED,
            "a flush now, and a stop (save and exit) before that time, which replaces the one told before",
        ),
    ],
)
def test_what_follows_is_said_in_words(mail: Mail, proof: Proof, line: str) -> None:
    """One line each."""
    assert f"follows     {line}" in only(mail, proof).lines


@pytest.mark.hostile(56)
def test_no_words_of_a_stranger_are_shown_raw() -> None:
    """Control characters, bidi marks, braces, percent signs, lengths: on one short line each."""
    evil = "\n\r\x1b[31m\u202e{{x}} %s " + "a" * 100_000
    mail = Mail(
        raw=b"",
        header_counts={},
        subject=evil,
        sender=f"{evil}@digitalocean.com",
        recipients=(evil,),
        date=SENT_AT,
        message_id=evil,
        digest="d",
        text=TEXT,
        quoted="",
        is_automatic=False,
        is_forwarded=False,
        problems=(evil,),
    )
    reading = Reading(
        mail_class=understand(
            mail, droplets=[OURS], patterns=default_patterns(), received_at=SENT_AT
        ).mail_class,
        class_why=evil,
        mentions=(Mention(droplet=OURS, by="name"),),
        at=AT,
        at_why="stated",
    )
    proof = Proof(result=Proven.YES, domain=evil, findings=(evil,))
    (found,) = judge(
        mail,
        proof,
        reading,
        delivery=delivered(mail, doubts=(evil,)),
        rules=RULES,
        trust_relay=False,
        now=SENT_AT,
    )
    for line in (*found.lines, found.detail):
        assert line.isprintable()
        assert len(line) < 400
