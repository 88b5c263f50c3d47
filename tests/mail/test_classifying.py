# SPDX-License-Identifier: Apache-2.0
"""Single statements, and how they decide together what a mail is."""

from __future__ import annotations

import time
from dataclasses import replace
from itertools import cycle, islice

import pytest

from spotwatch.mail.classifying import Around, classify
from spotwatch.mail.model import Mail, MailClass
from spotwatch.mail.normalising import MAX_CHARACTERS
from spotwatch.mail.patterns import default_patterns
from spotwatch.mail.saying import MAX_STATEMENTS, read_words

NAMED = Around(
    names_ours=True, quotes_ours=False, names_others=False, is_taken_back_for_all=True, states_time=True
)
UNNAMED = replace(NAMED, names_ours=False, states_time=False)
SPOT = "Your Spot Droplet a-1 "


def mail(
    text: str = "", *, subject: str = "", quoted: str = "", sender: str = "no-reply@digitalocean.com"
) -> Mail:
    """Return a mail as read."""
    return Mail(
        raw=b"",
        header_counts={},
        subject=subject,
        sender=sender,
        recipients=(),
        date=None,
        message_id="",
        digest="",
        text=text,
        quoted=quoted,
        is_automatic=False,
        is_forwarded=False,
    )


def class_of(of: Mail, around: Around = NAMED) -> str:
    """Return the class of a mail."""
    return classify(read_words(of, default_patterns()), around)[0].value


@pytest.mark.parametrize(
    "text",
    [
        SPOT + "will be reclaimed at 13:50 UTC, and all data on its disk will be deleted.",
        SPOT + "will be reclaimed at 13:50 UTC; if you need more time, tell us.",
        SPOT + "will be permanently destroyed at 13:50 UTC.",
        SPOT + "will soon be taken back.",
        SPOT + "is being preempted.",
        SPOT + "is scheduled to be terminated at 13:50 UTC.",
        SPOT + "has been marked for reclamation.",
        SPOT + "will\nbe reclaimed.",
        SPOT + "will be reclaimed due to host maintenance.",
        "We are reclaiming the following Spot Droplets.",
        "DigitalOcean needs to take back the Spot GPU Droplet a-1.",
        "We will have to interrupt your Spot instance.",
        "Spot capacity in nyc2 has been recalled. Droplet a-1 goes at 13:50 UTC.",
        "This is a two-hour notification of the reclaim of a Spot Droplet.",
        "Reclaim time: 2026-11-29 13:50 UTC. Spot Droplet: a-1",
        "This is your Spot GPU Droplet a-1. It will be shut down at 13:50 UTC.",
        SPOT + "will be reclaimed. If you have migrated already, please disregard this notice.",
        SPOT + "will be reclaimed, and is no longer available after that.",
        SPOT + "will be reclaimed. To stop these mails, unsubscribe. See our release notes.",
        SPOT + "will be reclaimed. Your other Droplets will not be reclaimed.",
        SPOT + "will be reclaimed. On-demand Droplets will not be reclaimed.",
        "As announced before, your reclaim goes ahead: Spot Droplet a-1 ends.",
    ],
)
def test_a_fact_in_the_future_is_a_reclaim(text: str) -> None:
    """In many wordings, whatever stands beside it."""
    assert class_of(mail(text)) == "reclaim"


@pytest.mark.parametrize(
    "subject",
    [
        "Spot Droplet reclaim notice",
        "Notice of upcoming reclamation",
        "[DigitalOcean] Two hours until the interruption of a-1",
        "Your Spot Droplet a-1 will be reclaimed",
    ],
)
def test_a_subject_may_be_the_whole_announcement(subject: str) -> None:
    """The text names the Droplet only."""
    assert class_of(mail("Spot Droplet a-1", subject=subject)) == "reclaim"


@pytest.mark.parametrize(
    "text",
    [
        "The reclaim of your Spot Droplet a-1 has been cancelled.",
        "The reclamation, announced for 13:50 UTC, was called off.",
        "We have cancelled the reclaim of a-1.",
        "We are withdrawing our notice of reclaim.",
        SPOT + "will not be reclaimed.",
        SPOT + "will no longer be reclaimed.",
        SPOT + "is no longer scheduled for reclamation.",
        "The reclaim notice for a-1 was sent in error.",
        "You had a reclaim notice. Please disregard our earlier notice.",
        "We told you that your Spot Droplet a-1 will be reclaimed. It will not be reclaimed.",
    ],
)
def test_what_takes_a_reclaim_back_is_a_cancel(text: str) -> None:
    """Said as a fact, of a reclaim."""
    assert class_of(mail(text)) == "cancel"


@pytest.mark.hostile(48)
@pytest.mark.parametrize(
    "text",
    [
        "If the reclaim has been cancelled, your Spot Droplet stays.",
        "The reclaim may be cancelled later.",
        "The reclaim has not been cancelled.",
        "The reclaim cannot be cancelled.",
        SPOT + "will not be reclaimed before 13:50 UTC.",
        SPOT + "will not be reclaimed until we write again.",
        SPOT + "will be reclaimed. The reclaim of another was cancelled.",
        "The reclaim has been cancelled. Your Spot Droplet a-1 will still be terminated at 13:50 UTC.",
        "Only the reclaim of the others has been cancelled.",
        "All reclaims were cancelled. The reclaim of a-1 has been cancelled, other than told.",
        "The reclaim has been cancelled, and its time has been changed.",
    ],
)
def test_a_cancel_in_doubt_is_none(text: str) -> None:
    """Conditions, negations, limits, and a reclaim beside it: it flushes, at most."""
    assert class_of(mail(text)) in ("unclear", "reclaim")


@pytest.mark.parametrize(
    "text",
    [
        "Your order has been cancelled.",
        "Your subscription was cancelled, please disregard our previous notice.",
        "The webinar has been called off.",
    ],
)
def test_a_cancel_of_something_else_is_no_cancel(text: str) -> None:
    """It must speak of a reclaim."""
    assert class_of(mail(text), UNNAMED) == "other_notice"


@pytest.mark.hostile(48)
@pytest.mark.parametrize(
    "text",
    [
        "The reclaim of a-1 has been postponed to 2026-11-29 13:55 UTC.",
        "The new time of the reclaim is 2026-11-29 13:55 UTC.",
        "Our reclaim notice contained an incorrect time. Start: 2026-11-29 13:55 UTC.",
        "The interruption was brought forward. Your Spot Droplet a-1 will be reclaimed at 13:10 UTC.",
    ],
)
def test_a_changed_time_of_a_reclaim_is_a_correction(text: str) -> None:
    """As long as a time is stated."""
    assert class_of(mail(text)) == "correction"
    assert class_of(mail(text), replace(NAMED, states_time=False)) in ("unclear", "reclaim")


@pytest.mark.parametrize(
    "text",
    [
        "Spot Droplets can be reclaimed at any time.",
        "When we need capacity, a Spot Droplet will be reclaimed.",
        "If you do nothing, your Spot Droplet will be reclaimed.",
        "Spot Droplets will be reclaimed when we need the capacity.",
        "Your Spot Droplet may be reclaimed soon.",
        "Our reclaim policy has a new page.",
        "Your Droplet a-1 will be destroyed.",
        "Something about a-1 that nobody has foreseen.",
        "Capacity for Spot Droplets may end.",
    ],
)
def test_talk_about_a_reclaim_is_unclear(text: str) -> None:
    """No fact about this Droplet now."""
    assert class_of(mail(text)) == "unclear"


@pytest.mark.hostile(42)
@pytest.mark.parametrize(
    "text",
    [
        "Scheduled maintenance: the Droplets below will be shut down. a-1",
        "Your invoice is here: Spot GPU Droplet a-1, 12 hours",
        "DigitalOcean monitoring triggered: CPU is running high - a-1",
        "Your backups of Droplet a-1 will be deleted. Your payment failed, see the invoice.",
        "Your password was changed. Droplet a-1",
    ],
)
def test_other_notices_that_name_ours_are_other_notices(text: str) -> None:
    """They are understood."""
    assert class_of(mail(text)) == "other_notice"


@pytest.mark.hostile(42)
def test_a_newsletter_that_talks_of_reclaims_is_a_newsletter() -> None:
    """Unless it names our Droplet, when it is in doubt."""
    text = (
        "Introducing Spot Droplets. How to handle a reclaim. Spot Droplets will be interrupted. Unsubscribe"
    )
    assert class_of(mail(text), UNNAMED) == "other_notice"
    assert class_of(mail("News of reclaims. Unsubscribe")) == "unclear"


@pytest.mark.parametrize(
    "text",
    [
        "https://example.com/reclaim?will-be-reclaimed",
        "my-reclaim-1 is fine",
        "reclaim.example.com",
        "reclaim_1",
    ],
)
def test_addresses_and_names_are_no_statements(text: str) -> None:
    """A page or a Droplet may be called so."""
    assert class_of(mail(text), UNNAMED) == "other_notice"


def test_a_newsletter_cancels_nothing() -> None:
    """What it says of reclaims is about anybody's Droplets."""
    assert class_of(mail("Introducing capacity that will not be reclaimed."), UNNAMED) == "unclear"


def test_a_statement_ends_where_its_sentence_does() -> None:
    """Words of different paragraphs make no announcement."""
    text = "Your Spot Droplet is fine and\n\nbe reclaimed is what it will\n\nnot"
    assert class_of(mail(text)) == "unclear"


def test_words_on_both_sides_of_a_cut_are_found() -> None:
    """A sentence without an end is looked at in pieces that overlap."""
    for length in range(300, 520):
        text = "x" * length + " your Spot Droplet a-1 will be reclaimed at noon " + "y" * 300
        assert class_of(mail(text, subject="Your reclaim")) == "reclaim"


@pytest.mark.hostile(44, 45)
def test_quoted_words_do_not_decide() -> None:
    """They make a mail unclear at most; the subject of an answer is quoted."""
    reclaim = "Your Spot Droplet a-1 will be reclaimed."
    quoting = replace(NAMED, names_ours=False, quotes_ours=True)
    assert class_of(mail("FYI", quoted=reclaim), quoting) == "unclear"
    assert class_of(mail("FYI", subject=f"Fwd: {reclaim}"), quoting) == "unclear"
    assert class_of(mail("Thanks", subject=f"Re: {reclaim}", sender="ada@example.org"), quoting) == "other"
    assert class_of(mail("Thanks", subject=f"AW: {reclaim}"), quoting) == "unclear"
    assert class_of(mail("See", quoted="The reclaim of a-1 has been cancelled."), quoting) == "unclear"
    others = replace(quoting, quotes_ours=False, names_others=True)
    assert class_of(mail("FYI", quoted=reclaim, sender="ada@example.org"), others) == "other"


@pytest.mark.hostile(44, 45)
def test_what_is_named_in_quoted_words_only_is_in_doubt() -> None:
    """The own words may be about another Droplet."""
    quoting = replace(NAMED, names_ours=False, quotes_ours=True)
    for text in ("The reclaim has been cancelled.", "A Spot Droplet will be reclaimed."):
        assert class_of(mail(text, quoted="a-1"), quoting) == "unclear"
        assert class_of(mail(text, quoted="a-1"), NAMED) != "unclear"


def test_a_sender_that_is_known_makes_it_a_notice_of_digitalocean() -> None:
    """By the end of the domain's name, not by a part."""
    assert class_of(mail("Hello"), UNNAMED) == "other_notice"
    assert class_of(mail("Hello", sender="a@info.digitalocean.com"), UNNAMED) == "other_notice"
    for sender in ("a@digitalocean.com.example", "a@xdigitalocean.com", "digitalocean.com@example.org", ""):
        assert class_of(mail("Hello", sender=sender), UNNAMED) == "other"


def test_why_names_the_pattern() -> None:
    """People find it in the file."""
    found = classify(read_words(mail(SPOT + "will be reclaimed."), default_patterns()), NAMED)
    assert found == (MailClass.RECLAIM, "will-be-reclaimed")


def test_a_mail_that_says_more_than_is_searched_is_unclear() -> None:
    """No notice is that long; a mail of thousands of sentences would keep others waiting."""
    many = " ".join(f"This is sentence {n} of very many." for n in range(MAX_STATEMENTS + 1))
    assert class_of(mail(f"{SPOT}will be reclaimed. {many}")) == "unclear"
    assert class_of(mail(f"The reclaim of a-1 has been cancelled. {many}")) == "unclear"
    assert class_of(mail(many), UNNAMED) == "other_notice"


def test_a_list_of_names_is_no_statement_and_may_be_long() -> None:
    """A fleet may have thousands of Droplets."""
    names = "\n\n".join(f"spot-{n} 10.0.{n // 250}.{n % 250}" for n in range(1500))
    assert class_of(mail(f"Your Spot Droplets will be reclaimed.\n\n{names}")) == "reclaim"


@pytest.mark.parametrize(
    "words",
    [
        "we are sending you {} notice notification reclaim",
        "capacity gpus hardware droplets has been is being {}",
        "cpu memory disk load {} network gpu",
        "spot droplets {} reclaim termination cancelled",
        "is scheduled to be if when told that {}",
        "a. ",
        "{}. {}",
        "2026-11-29 13:50 UTC {}",
        "-",
        "\n\n",
    ],
)
def test_the_worst_text_takes_bounded_time(words: str) -> None:
    """As much text as may come, made to keep the patterns busy: seconds even on a slow machine."""
    pieces = islice((words.replace("{}", str(n)) for n in cycle(range(9999))), MAX_CHARACTERS)
    text = " ".join(islice(pieces, MAX_CHARACTERS // len(words)))[:MAX_CHARACTERS]
    began = time.process_time()
    read_words(mail(text), default_patterns())
    assert time.process_time() - began < 5
