# SPDX-License-Identifier: Apache-2.0
"""A mail signed by a trusted domain for its sender is proven, cheaply, and without a trace in the log."""

from __future__ import annotations

import time

import pytest

from spotwatch.mail.dkim import prove, signatures
from spotwatch.mail.keys import KeyAnswer, KeyCache, KeyState
from spotwatch.mail.model import Proof, Proven
from spotwatch.mail.reading import read_mail
from spotwatch.testing import FakeClock, run_virtual
from tests.mail.proving import DO, MAIL, THIEF, TRUSTED, changed, names_asked, proof_of
from tests.mail.signing import HEADERS, Signer, StubResolver


@pytest.mark.parametrize(
    "form", ["relaxed/relaxed", "simple/simple", "relaxed/simple", "simple/relaxed", "relaxed", "simple"]
)
def test_mail_signed_by_a_trusted_domain_is_proven(form: str) -> None:
    """Every way of bringing headers and body into shape is understood."""
    proof = proof_of(DO.sign(MAIL, canonicalization=form))
    assert (proof.result, proof.domain) == (Proven.YES, "digitalocean.com")
    assert proof.signed_headers == set(HEADERS)
    assert proof.findings == ("digitalocean.com (s1, rsa-sha256): holds",)


def test_mail_stored_with_other_line_ends_is_proven() -> None:
    """Pipes and files make LF of the CRLF that was signed."""
    assert proof_of(DO.sign(MAIL).replace(b"\r\n", b"\n")).result is Proven.YES


@pytest.mark.parametrize("body", [b"", b"\n", b"\n\n\n", b" \n \n", b"a"])
@pytest.mark.parametrize("form", ["relaxed/relaxed", "simple/simple"])
def test_mail_of_few_words_is_proven(body: bytes, form: str) -> None:
    """Empty bodies, blank ones and those without a last line end are where verifiers differ."""
    assert proof_of(DO.sign(MAIL.partition(b"Hello")[0] + body, canonicalization=form)).result is Proven.YES


@pytest.mark.parametrize(
    ("domain", "sender"),
    [
        ("em.digitalocean.com", "no-reply@digitalocean.com"),
        ("digitalocean.com", "support@support.digitalocean.com"),
        ("em.digitalocean.com", "support@info.digitalocean.com"),
        ("DigitalOcean.com", "Support@DigitalOcean.COM"),
    ],
)
def test_signer_and_sender_may_be_below_the_trusted_domain(domain: str, sender: str) -> None:
    """Services sign with a name of their own below a customer's domain."""
    signer = Signer(domain, "s1")
    raw = signer.sign(changed(MAIL, b"support@digitalocean.com", sender.encode()))
    assert proof_of(raw, signer.answers).result is Proven.YES


def test_every_signature_is_tried() -> None:
    """Relays sign what they pass on, above the signature that counts."""
    relay = Signer("forwardemail.net", "s2", owner="relay")
    raw = relay.sign(DO.sign(MAIL))
    proof = proof_of(raw, DO.answers | relay.answers)
    assert (proof.result, proof.domain) == (Proven.YES, "digitalocean.com")
    assert [found.domain for found in signatures(read_mail(raw))] == ["forwardemail.net", "digitalocean.com"]
    assert names_asked(raw) == (DO.key_name,)


def test_right_signature_counts_beside_a_broken_one_of_the_same_domain() -> None:
    """A domain signs twice, with an old key and a new one, and one of them is enough."""
    old = Signer("digitalocean.com", "old", owner="old")
    raw = old.sign(DO.sign(MAIL))
    proof = proof_of(raw, DO.answers | {old.key_name: KeyAnswer(state=KeyState.MISSING, why="gone")})
    assert proof.result is Proven.YES
    assert "no key old._domainkey.digitalocean.com" in proof.findings[0]


def test_header_that_is_there_more_often_than_signed_is_not_covered() -> None:
    """Whoever uses a header can tell whether all of it is proven."""
    raw = changed(
        DO.sign(MAIL, headers=(*HEADERS, "list-id")), b"From: ", b"List-Id: a\r\nList-Id: b\r\nFrom: "
    )
    signed = DO.sign(
        changed(MAIL, b"MIME", b"Auto-Submitted: no\nAuto-Submitted: no\nMIME"),
        headers=(*HEADERS, "auto-submitted"),
    )
    assert proof_of(raw).result is Proven.NO
    proof = proof_of(signed)
    assert proof.result is Proven.YES
    assert "auto-submitted" not in proof.signed_headers


def test_header_signed_though_it_was_missing_cannot_be_added() -> None:
    """Naming a header once more than it is there forbids another."""
    raw = DO.sign(MAIL, headers=(*HEADERS, "reply-to", *HEADERS))
    assert proof_of(raw).result is Proven.YES
    assert proof_of(changed(raw, b"MIME-V", b"Reply-To: x@evil.com\r\nMIME-V")).result is Proven.NO


@pytest.mark.hostile(41)
def test_silence_of_dns_leaves_the_proof_open() -> None:
    """Without an answer nothing is known; with the answer that there is no key, the mail is unproven."""
    raw = DO.sign(MAIL)
    silent = KeyAnswer(state=KeyState.NO_ANSWER, why="SERVFAIL")
    assert proof_of(raw, {DO.key_name: silent}).result is Proven.UNKNOWN
    assert proof_of(raw, {}).result is Proven.UNKNOWN
    missing = KeyAnswer(state=KeyState.MISSING, why="DNS has no such key")
    assert proof_of(raw, {DO.key_name: missing}).result is Proven.NO


@pytest.mark.hostile(41)
def test_silence_about_a_signature_that_cannot_count_leaves_nothing_open() -> None:
    """A stranger cannot make a mail wait for his name server."""
    silent = KeyAnswer(state=KeyState.NO_ANSWER, why="time-out")
    assert proof_of(THIEF.sign(MAIL), {THIEF.key_name: silent}).result is Proven.NO
    assert proof_of(DO.sign(MAIL, length=5), {DO.key_name: silent}).result is Proven.NO
    other = Signer("digitalocean.com", "other")
    raw = other.sign(DO.sign(MAIL))
    assert proof_of(raw, DO.answers | {other.key_name: silent}).result is Proven.YES


def test_remembered_key_is_told() -> None:
    """Whoever reads the finding learns that DNS did not answer now."""
    found = KeyAnswer(state=KeyState.FOUND, text=DO.records[DO.key_name], why="remembered")
    proof = proof_of(DO.sign(MAIL), {DO.key_name: found})
    assert proof.findings == ("digitalocean.com (s1, rsa-sha256): holds (remembered)",)


@pytest.mark.hostile(40)
def test_fifty_signatures_cost_five_questions_at_most() -> None:
    """Fifty of a trusted domain: five names. One below fifty strangers': one name, and it counts."""

    async def asked(raw: bytes) -> tuple[Proof, list[str]]:
        resolver = StubResolver(DO.records)
        keys = await KeyCache(resolver, FakeClock()).fetch(names_asked(raw))
        return proof_of(raw, keys), resolver.asked

    many, genuine = MAIL, DO.sign(MAIL)
    for i in range(50):
        many = Signer("digitalocean.com", f"x{i}", bits=1024, owner="thief").sign(many)
        genuine = Signer(f"evil{i}.com", "s1", bits=1024, owner="thief").sign(genuine)
    proof, questions = run_virtual(asked(many))
    assert (proof.result, len(questions)) == (Proven.NO, 5)
    assert "45 more signatures were not looked at" in proof.findings
    proof, questions = run_virtual(asked(genuine))
    assert (proof.result, questions) == (Proven.YES, [DO.key_name])


_LONG = 200 * 1024


@pytest.mark.parametrize("form", ["relaxed/relaxed", "simple/simple"])
@pytest.mark.parametrize(
    "body",
    [
        b" " * _LONG + b"x",
        b"\t \t" * (_LONG // 3) + b"x",
        b"\r\n" * (_LONG // 2),
        b" \r\n" * (_LONG // 3),
        b"=\r" * 99,
        b"= " * (_LONG // 2) + b"x",
    ],
    ids=["blanks", "tabs", "lines", "blank lines", "lone CRs", "equals"],
)
def test_body_made_to_be_slow_is_not(body: bytes, form: str) -> None:
    """Of the first dkimpy alone makes a minute; five signatures take a seventh of a second at worst."""
    signers = [Signer("digitalocean.com", f"x{i}", bits=1024) for i in range(5)]
    raw = MAIL.partition(b"Hello")[0] + body
    for signer in signers:
        raw = signer.sign(raw, canonicalization=form)
    mail = read_mail(changed(raw, b"Subject: Your", b"Subject: Another"))
    keys = {name: answer for signer in signers for name, answer in signer.answers.items()}
    began = time.process_time()
    proof = prove(mail, keys, trusted_domains=TRUSTED)
    assert time.process_time() - began < 5.0
    assert [finding.rpartition(": ")[2] for finding in proof.findings] == [
        "the headers are not those that were signed, or not with this key"
    ] * 5


@pytest.mark.parametrize(
    "value",
    [
        b"b=" + b"\r\n " * 1300 + b"!",
        b" b" * 2000,
        b";" * 4000,
        b"b" + b"\r\n\t" * 20 + b"A",
        (b"b=" + b"\r\n " * 20 + b"A") * 40,
    ],
)
def test_signature_made_to_be_slow_is_not(value: bytes) -> None:
    """The search for `b=` takes a square of the blanks in a row; so many are refused before."""
    raw = DO.sign(MAIL)
    raw = changed(raw, b"DKIM-Signature: v=1;", b"DKIM-Signature: v=1; z=" + value + b";")
    mail = read_mail(raw)
    began = time.process_time()
    prove(mail, DO.answers, trusted_domains=TRUSTED)
    assert time.process_time() - began < 2.0


def test_nothing_of_a_mail_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    """What dkimpy does not like it logs, with the stranger's words; here it is silent."""
    caplog.set_level(0)
    for raw in (
        DO.sign(MAIL),
        changed(DO.sign(MAIL), b"spot-1", b"spot-2"),
        DO.sign(MAIL, tags={"i": "@x"}),
    ):
        proof_of(raw)
    assert caplog.records == []


def test_findings_show_nothing_that_steers_a_terminal() -> None:
    """What is foreign in them is escaped and short."""
    raw = DO.sign(MAIL, tags={"i": "\x1b[2J\u202e@evil.com", "z": "x" * 900})
    raw += b"" if raw.endswith(b"\r\n") else b"\r\n"
    finding = proof_of(changed(raw, b"Subject: ", b"X\x1b[2J: " + b"a" * 900 + b"\r\nSubject: ")).findings[0]
    for text in (finding, *proof_of(raw).findings):
        assert text.isprintable()
        assert len(text) < 200
