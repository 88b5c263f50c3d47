# SPDX-License-Identifier: Apache-2.0
"""What a mail costs that must be refused, measured against one look at a body of that size."""

from __future__ import annotations

import time

from spotwatch.mail.dkim import prove
from spotwatch.mail.model import Mail, Proven
from spotwatch.mail.reading import read_top
from tests.mail.making import SIGNER, plain
from tests.mail.proving import NOW, TRUSTED

_LARGE = plain(sent_at=NOW, text="ab  c\t d \r\n" * 20_000)
_SIGNATURE = SIGNER.sign(_LARGE).partition(b"From:")[0]
_CHANGED = _LARGE.replace(b"ab", b"ac", 1)


def _seconds(mail: Mail) -> float:
    best = []
    for _ in range(5):
        begin = time.process_time()
        proof = prove(mail, SIGNER.answers, trusted_domains=TRUSTED, now=NOW)
        best.append(time.process_time() - begin)
        assert proof.result is Proven.NO
    return min(best)


def test_a_signature_that_is_not_by_the_key_costs_no_look_at_the_body() -> None:
    """Anybody can write one in DigitalOcean's name."""
    one_look = _seconds(read_top(_SIGNATURE + _CHANGED))
    forged = _SIGNATURE + _CHANGED.replace(b"Subject: Your", b"Subject: My")
    assert _seconds(read_top(forged)) < 0.7 * one_look


def test_a_genuine_signature_many_times_costs_one_look_at_the_body() -> None:
    """Whoever has a mail of DigitalOcean's can put its headers above a text of his own."""
    one_look = _seconds(read_top(_SIGNATURE + _CHANGED))
    assert _seconds(read_top(5 * _SIGNATURE + _CHANGED)) < 3 * one_look


def test_one_key_is_tried_twice_at_most() -> None:
    """Whoever copies a signature is not heard five times as long; the second one may be genuine."""
    raw = plain(sent_at=NOW)
    genuine = SIGNER.sign(raw)
    broken = SIGNER.sign(plain(sent_at=NOW, subject="Another")).partition(b"From:")[0]
    for copies, wanted in ((1, Proven.YES), (2, Proven.NO), (4, Proven.NO)):
        proof = prove(read_top(copies * broken + genuine), SIGNER.answers, trusted_domains=TRUSTED, now=NOW)
        assert proof.result is wanted
        assert sum("not looked at" in finding for finding in proof.findings) == max(0, copies - 1)
