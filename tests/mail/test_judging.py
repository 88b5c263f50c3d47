# SPDX-License-Identifier: Apache-2.0
"""The rules of evidence: what each point is worth, and what follows from each sample."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from spotwatch.config import Mail as Rules
from spotwatch.mail.model import Droplet, Mail, Proof, Proven
from spotwatch.model import Evidence
from tests.mail.judgements import (
    ALL,
    AT,
    RULES,
    SIGNED,
    SINGLE,
    UNSIGNED,
    follows,
    judged,
    missing,
    only,
    written,
)
from tests.mail.samples import DELAY, OURS, SAMPLES, SENT_AT, Sample


@pytest.mark.hostile(36, 42, 44, 45, 48, 50, 51, 52)
@pytest.mark.parametrize("one", SAMPLES, ids=lambda one: one.name)
def test_what_follows_from_each_sample_when_all_of_it_is_signed(one: Sample) -> None:
    """A stop, a flush, a cancel, a correction or nothing, as the table says."""
    found = only(one.read())
    assert follows(found) == one.follows


@pytest.mark.parametrize("one", SAMPLES, ids=lambda one: one.name)
def test_nothing_unsigned_does_more_than_flush(one: Sample) -> None:
    """Nor does it less, for what announces a reclaim."""
    found = only(one.read(), UNSIGNED)
    assert found.evidence is Evidence.WEAK
    wanted = {"stop": "flush", "correction": "flush", "cancel": "weak cancel"}
    assert follows(found) == wanted.get(one.follows, one.follows)


def test_a_proven_reclaim_is_strong_and_whole() -> None:
    """Every field that others rely on."""
    found = only(written())
    assert (found.event, found.evidence, found.result) == ("reclaim", Evidence.STRONG, "accepted")
    assert (found.droplet, found.at, found.signed_at) == (OURS, AT, SENT_AT)
    assert (found.message_key, found.is_temporary, found.is_kept) == ("<1@x>", False, False)
    assert found.detail == "mail, signed by digitalocean.com: reclaim, names Droplet 512345678 by its name"
    assert not missing(found)


@pytest.mark.hostile(37, 38, 39, 43, 46)
@pytest.mark.parametrize(
    ("changes", "proof", "rules", "why"),
    [
        ({}, UNSIGNED, RULES, "no signature of digitalocean.com holds"),
        ({}, replace(SIGNED, signed_headers=ALL - {"to"}), RULES, "To is not signed"),
        ({}, replace(SIGNED, signed_headers=ALL - {"date"}), RULES, "Date is not signed"),
        ({}, replace(SIGNED, domain="evil.example"), RULES, "From is not of the domain that signed it"),
        ({"sender": "a@evil.example"}, SIGNED, RULES, "From is not of the domain"),
        ({"sender": "a@digitalocean.com.evil.example"}, SIGNED, RULES, "From is not of the domain"),
        ({"sender": "a@xdigitalocean.com"}, SIGNED, RULES, "From is not of the domain"),
        ({"sender": ""}, SIGNED, RULES, "From is not of the domain"),
        ({}, SIGNED, Rules(), "mail.account_addresses is empty"),
        ({}, SIGNED, Rules(account_addresses=("other@example.org",)), "To is none of"),
        ({"recipients": ()}, SIGNED, RULES, "To is none of"),
        ({}, SIGNED, replace(RULES, trusted_domains=()), "From is not of the domain"),
        ({}, UNSIGNED, replace(RULES, trusted_domains=()), "no signature of a trusted domain holds"),
        ({"date": None}, SIGNED, RULES, "no Date with a zone"),
        ({"date": SENT_AT - timedelta(hours=4)}, SIGNED, RULES, "older than mail.max_age_seconds"),
        ({"date": SENT_AT + timedelta(minutes=11)}, SIGNED, RULES, "lies ahead"),
        ({"problems": ("cut\x1b[2J",)}, SIGNED, RULES, "not all was read: cut\\x1b[2J"),
        ({"is_forwarded": True}, SIGNED, RULES, "a person has forwarded it"),
        ({"header_counts": {"subject": 2}}, SIGNED, RULES, "2 headers Subject"),
    ],
)
def test_each_rule_alone_makes_it_weak(changes: dict[str, Any], proof: Proof, rules: Rules, why: str) -> None:
    """A flush is left, and what is missing is said, once."""
    found = only(written(**changes), proof, rules=rules, now=SENT_AT + DELAY, received_at=SENT_AT + DELAY)
    assert follows(found) == "flush"
    assert [point for point in missing(found) if why in point]
    assert len(missing(found)) == 1


@pytest.mark.hostile(31)
def test_a_doubt_of_the_service_makes_it_weak() -> None:
    """Whatever DKIM says here."""
    found = only(written(), doubts=("dkimVerdict: FAIL\n",))
    assert follows(found) == "flush"
    assert missing(found) == ["the service doubts it: dkimVerdict: FAIL\\n"]


@pytest.mark.hostile(45)
def test_an_automatic_answer_is_ignored() -> None:
    """Even one that is signed."""
    found = only(written(is_automatic=True))
    assert (found.event, found.result, found.at) == ("none", "ignored", None)


@pytest.mark.parametrize("minutes", [-9, 0, 179])
def test_a_date_within_the_limits_is_good(minutes: int) -> None:
    """Ten minutes ahead, three hours back."""
    found = only(written(), now=SENT_AT + timedelta(minutes=minutes))
    assert found.evidence is Evidence.STRONG


def test_a_subdomain_of_a_trusted_domain_may_sign_and_send() -> None:
    """Either, for the other."""
    mail = written(sender="no-reply@support.digitalocean.com")
    assert only(mail).evidence is Evidence.STRONG
    assert only(mail, replace(SIGNED, domain="info.digitalocean.com")).evidence is Evidence.STRONG


@pytest.mark.hostile(43)
def test_a_hostname_alone_is_weak() -> None:
    """Any customer may call a Droplet like ours."""
    droplet = replace(OURS, names=frozenset())
    found = only(written(), SIGNED, droplet)
    assert (follows(found), found.droplet, found.result) == ("flush", droplet, "accepted")
    assert "provider.digitalocean.names" in missing(found)[0]


@pytest.mark.hostile(52)
def test_a_mail_that_names_nobody_is_for_all_and_weak_unless_there_is_one_droplet() -> None:
    """`mail.single_droplet_account` says so."""
    mail = written("Your Spot Droplet will be reclaimed at 2026-11-29 13:50 UTC.")
    broadcast = only(mail)
    assert (follows(broadcast), broadcast.droplet) == ("flush", None)
    assert follows(only(mail, rules=SINGLE)) == "stop"


def test_one_droplet_in_the_account_is_no_reason_when_another_is_named() -> None:
    """The setting is wrong, or the mail is not for us."""
    mail = written("Your Spot Droplet spot-batch-07 will be reclaimed at 2026-11-29 13:50 UTC.")
    assert follows(only(mail, rules=SINGLE)) == "not_mine"


def test_each_droplet_is_judged_by_its_own_mark() -> None:
    """One by its number, one by its hostname."""
    by_host = Droplet(droplet_id=7000001, hostname="spot-batch-07")
    found = judged(
        written("Spot Droplets 512345678 and spot-batch-07 will be reclaimed."), SIGNED, OURS, by_host
    )
    assert [(one.droplet, follows(one)) for one in found] == [(OURS, "stop"), (by_host, "flush")]


@pytest.mark.hostile(41)
def test_without_an_answer_from_dns_it_flushes_and_is_expected_again() -> None:
    """What would be ignored, is ignored all the same."""
    unknown = Proof(result=Proven.UNKNOWN)
    found = only(written(), unknown)
    assert (follows(found), found.is_temporary) == ("flush", True)
    why = "its signature is not checked yet, for DNS did not answer or the clock is not set"
    assert missing(found) == [why]
    assert not only(written("Your invoice"), unknown).is_temporary


def test_a_trusted_service_proves_what_it_signed() -> None:
    """With `webhook.trust_relay`, its signature over the mail, and no DKIM that says otherwise."""
    mail, signed = written(), {"covers_body": True, "is_original": False}
    assert follows(only(mail, UNSIGNED, trust_relay=True, **signed)) == "stop"
    assert follows(only(mail, UNSIGNED, trust_relay=False, **signed)) == "flush"
    assert follows(only(mail, UNSIGNED, trust_relay=True, covers_body=False)) == "flush"
    assert follows(only(mail, UNSIGNED, trust_relay=True, covers_body=True)) == "stop"


def test_a_trusted_service_proves_no_original_whose_signature_does_not_hold() -> None:
    """It was changed on its way; where only fields are left, there is nothing to hold."""
    mail = written(header_counts={"dkim-signature": 1})
    relayed = {"trust_relay": True, "covers_body": True}
    assert follows(only(mail, UNSIGNED, **relayed)) == "flush"
    assert follows(only(mail, Proof(result=Proven.UNKNOWN), **relayed)) == "flush"
    assert follows(only(mail, UNSIGNED, is_original=False, **relayed)) == "stop"
    assert follows(only(mail, SIGNED, **relayed)) == "stop"


def test_a_trusted_service_changes_no_other_rule() -> None:
    """Sender, address and age still count."""
    relayed = {"trust_relay": True, "covers_body": True}
    assert missing(only(written(sender="a@evil.example"), UNSIGNED, **relayed)) == [
        "From is not of digitalocean.com"
    ]
    assert follows(only(written(), UNSIGNED, rules=Rules(), **relayed)) == "flush"
    assert follows(only(written(), UNSIGNED, now=SENT_AT + timedelta(hours=4), **relayed)) == "flush"


@pytest.mark.hostile(48)
def test_a_weak_cancel_stays_a_cancel_and_a_weak_correction_becomes_a_flush() -> None:
    """The one may end what is weak, the other must not move a time."""
    cancel = only(written("The reclaim of spot-trainer-01 has been cancelled."), UNSIGNED)
    assert (cancel.event, cancel.evidence, cancel.at) == ("cancel", Evidence.WEAK, None)
    text = "The reclaim of spot-trainer-01 has been postponed to 2026-11-29 13:55 UTC."
    correction = only(written(text), UNSIGNED)
    assert (correction.event, correction.evidence) == ("reclaim", Evidence.WEAK)
    strong = only(written(text))
    assert (strong.event, strong.at) == ("correction", SENT_AT + timedelta(minutes=115))


@pytest.mark.parametrize(
    ("mail", "is_kept"),
    [
        (written(), False),
        (written("spot-trainer-01 will do something."), True),
        (written("Spot Droplet spot-trainer-01 will be reclaimed."), True),
        (written(problems=("cut",)), True),
        (written("The reclaim of spot-trainer-01 has been cancelled."), False),
        (written("Your invoice", problems=("cut",)), False),
        (written("Spot Droplet spot-batch-07 will be reclaimed."), False),
    ],
    ids=["clear", "not-understood", "no-time", "cut", "cancel", "invoice", "others"],
)
def test_what_concerns_us_and_was_not_fully_understood_is_kept(mail: Mail, *, is_kept: bool) -> None:
    """Nobody knows these mails yet."""
    assert only(mail).is_kept is is_kept


@pytest.mark.hostile(46)
def test_a_mail_without_message_id_is_known_by_its_digest() -> None:
    """And one without Date by when it came."""
    mail = written(message_id="", date=None)
    found = only(mail, received_at=SENT_AT + DELAY)
    assert (found.message_key, found.signed_at) == (mail.digest, SENT_AT + DELAY)
