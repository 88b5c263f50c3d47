# SPDX-License-Identifier: Apache-2.0
"""Whole mails: their class, whom they name, and when."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spotwatch.mail.model import Droplet, Mail, MailClass, Reading
from spotwatch.mail.patterns import default_patterns
from spotwatch.mail.reading import read_mail
from spotwatch.mail.understanding import understand
from tests.mail.samples import DELAY, FOLDER, OURS, SAMPLES, SENT_AT, Sample

NO_HOSTNAME = Droplet(droplet_id=OURS.droplet_id)


def understood(mail: Mail, *droplets: Droplet) -> Reading:
    """Return what a mail says that came at once."""
    received_at = (mail.date or SENT_AT) + DELAY
    return understand(mail, droplets=droplets, patterns=default_patterns(), received_at=received_at)


def written(subject: str, text: str, *headers: str) -> Mail:
    """Return a plain mail of DigitalOcean."""
    top = ("From: no-reply@digitalocean.com", "To: ops@example.org", f"Subject: {subject}", *headers)
    return read_mail("\n".join([*top, "Date: Sun, 29 Nov 2026 12:00:00 +0000", "", text]).encode())


def sample(name: str) -> Mail:
    """Return one of the samples, read."""
    return next(one for one in SAMPLES if one.name == name).read()


@pytest.mark.hostile(36, 42, 44, 45, 48, 50, 51, 52)
@pytest.mark.parametrize("one", SAMPLES, ids=lambda one: one.name)
def test_each_sample_is_taken_for_what_it_is(one: Sample) -> None:
    """Class, Droplet and time of every sample are those of the table."""
    reading = understood(one.read(), OURS)
    by = next((mention.by for mention in reading.mentions), "others" if reading.names_others else "")
    stated = f"{reading.at:%H:%M}" if reading.at is not None and reading.is_at_stated else ""
    assert (reading.mail_class, by, stated) == (one.mail_class, one.named, one.stated)


def test_every_sample_is_in_the_table() -> None:
    """No file lies there that nobody looks at."""
    assert {path.stem for path in FOLDER.glob("*.eml")} == {one.name for one in SAMPLES}


def test_a_cancel_and_other_mail_have_no_time() -> None:
    """A time in them is nobody's deadline."""
    assert understood(sample("cancel"), OURS).at is None
    assert understood(sample("maintenance-2020"), OURS).at is None


def test_a_mail_without_a_time_has_the_fallback() -> None:
    """Two hours after its Date, less a quarter."""
    reading = understood(sample("reclaim-no-time"), OURS)
    assert reading.at == SENT_AT + timedelta(minutes=105)
    assert not reading.is_at_stated


@pytest.mark.hostile(50)
def test_each_of_several_droplets_is_mentioned_once() -> None:
    """A relay that asks for all its Droplets learns which of them are named, in their order."""
    others = tuple(Droplet(droplet_id=n, names=frozenset({f"spot-batch-{n:03}"})) for n in range(600))
    reading = understood(sample("reclaim-500-droplets"), *others, OURS)
    assert [mention.droplet.droplet_id for mention in reading.mentions] == [*range(499), OURS.droplet_id]
    assert not reading.names_others


@pytest.mark.hostile(52)
def test_a_droplet_whose_name_is_unknown_may_be_any_of_those_named() -> None:
    """With nothing but a number to go by, names alone do not say that it is another's mail."""
    reading = understood(sample("reclaim-others-only"), NO_HOSTNAME)
    assert (reading.mentions, reading.names_others) == ((), False)


def test_asked_about_no_droplet_a_mail_names_no_others() -> None:
    """Before we know who we are, every mail may be about us."""
    assert not understood(sample("reclaim-others-only")).names_others


@pytest.mark.hostile(48)
def test_a_cancel_that_names_ours_in_quoted_words_only_is_unclear() -> None:
    """The words around a quote may be about another Droplet of those quoted."""
    text = "The reclaim has been cancelled.\n\n> Your Spot Droplet spot-trainer-01 will be reclaimed."
    reading = understood(written("Spot notice", text), OURS)
    assert reading.mail_class is MailClass.UNCLEAR
    assert [mention.by for mention in reading.mentions] == ["name"]


@pytest.mark.hostile(48)
@pytest.mark.parametrize(
    "text",
    [
        "The reclaim of spot-batch-07 has been cancelled.\n\nspot-trainer-01 goes ahead.",
        "The reclaim of spot-batch-07 has been cancelled. spot-trainer-01 remains scheduled.",
        "All reclaims of today have been cancelled except for the one of spot-trainer-01.",
        "Droplet 500000001: its reclaim was cancelled. Droplet 512345678: see the control panel.",
        "The reclaim of spot-trainer-01 was cancelled: its time is changed to 2026-11-29 13:30 UTC.",
    ],
)
def test_a_cancel_that_may_be_of_another_droplet_is_unclear(text: str) -> None:
    """What is not said of ours, or not only, is not taken for its cancel."""
    assert understood(written("Spot reclaim", text), OURS).mail_class is MailClass.UNCLEAR


@pytest.mark.hostile(48)
def test_a_cancel_that_names_two_of_a_fleet_holds_for_those_in_its_sentence_only() -> None:
    """A relay knows both names, and the mail cancels one of them."""
    other = Droplet(droplet_id=7000001, names=frozenset({"spot-batch-07"}))
    reading = understood(sample("cancel-of-another"), other, OURS)
    assert reading.mail_class is MailClass.UNCLEAR
    assert len(reading.mentions) == 2


@pytest.mark.hostile(45)
def test_a_reply_of_a_person_names_ours_and_announces_nothing() -> None:
    """Also when the own words say something of the Droplet, or of reclaims."""
    mail = sample("reply-by-person")
    for text in ("spot-trainer-01 is saved.", "Is this reclaim of spot-trainer-01 real?"):
        assert understood(replace(mail, text=text), OURS).mail_class is MailClass.OTHER


@pytest.mark.hostile(44)
def test_a_forward_that_names_nobody_is_unclear() -> None:
    """`Fwd:` of `your Droplet` is as good as a broadcast, and no better."""
    text = "---------- Forwarded message ---------\n\nYour Spot Droplet will be reclaimed within 90 minutes."
    reading = understood(written("Fwd: notice", text), OURS)
    assert (reading.mail_class, reading.mentions) == (MailClass.UNCLEAR, ())


@pytest.mark.hostile(44)
def test_a_forward_about_others_is_not_about_ours() -> None:
    """Who is named in what is passed on is who is named."""
    text = "---------- Forwarded message ---------\n\nYour Spot Droplet spot-batch-07 will be reclaimed."
    reading = understood(written("Fwd: notice", text), OURS)
    assert (reading.mail_class, reading.names_others) == (MailClass.OTHER, True)


@pytest.mark.hostile(47)
def test_a_late_mail_keeps_the_time_that_it_states() -> None:
    """Three hours on its way, the deadline is past; it is not moved."""
    reading = understand(
        sample("reclaim-list-at-end"),
        droplets=[OURS],
        patterns=default_patterns(),
        received_at=SENT_AT + timedelta(hours=3),
    )
    assert reading.at == SENT_AT + timedelta(minutes=110)
    assert reading.is_at_stated


def test_a_newsletter_with_a_time_flushes_rather_than_nothing() -> None:
    """What says reclaim and newsletter and a time within two days is in doubt."""
    text = "Your Spot Droplet will be reclaimed at 2026-11-29 13:30 UTC. Unsubscribe"
    assert understood(written("News", text), OURS).mail_class is MailClass.UNCLEAR


def test_text_beyond_the_limit_is_not_looked_at() -> None:
    """The limit holds for whoever calls, not only for mail as read."""
    mail = written("Spot", "hello")
    reading = understood(replace(mail, text="a " * 40_000 + "spot-trainer-01 will be reclaimed."), OURS)
    assert reading.mail_class is MailClass.OTHER_NOTICE


FRAGMENTS = (
    *(
        "Your Spot Droplet ",
        "spot-trainer-01",
        " will be reclaimed",
        " has been cancelled",
        "512345678",
        " at ",
    ),
    *(
        "2026-11-29 13:50 UTC",
        " to ",
        "24:00",
        "-14:00",
        "2001:db8::7",
        "203.0.113.7/33",
        "Affected Droplets:\n",
    ),
    *(
        "\n\n",
        ". ",
        "in two hours",
        "Feb 30, 9999 ",
        "today",
        "\u202e",
        "\u0130",
        "\u00b2",
        "\U0001f4a3",
        "#",
        "+1 ",
    ),
)


@pytest.mark.hostile(53)
@settings(max_examples=150, deadline=None)
@given(
    text=st.lists(st.sampled_from(FRAGMENTS) | st.text(max_size=4), max_size=40).map("".join),
    signed_at=st.none() | st.datetimes(timezones=st.just(UTC)),
)
def test_no_text_and_no_date_breaks_it(text: str, signed_at: datetime | None) -> None:
    """A time, where there is one, is UTC and not later than two hours after the mail came."""
    mail = replace(written("Spot", text), date=signed_at)
    received_at = SENT_AT + DELAY
    reading = understand(mail, droplets=[OURS], patterns=default_patterns(), received_at=received_at)
    if reading.at is not None:
        assert reading.at.tzinfo is UTC
        assert reading.at <= received_at + timedelta(hours=2)
    else:
        assert not reading.is_at_stated
