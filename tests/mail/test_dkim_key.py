# SPDX-License-Identifier: Apache-2.0
"""A key counts as far as its record allows, and when nobody can forge with it."""

from __future__ import annotations

import pytest

from spotwatch.mail.model import Proven
from tests.mail.proving import MAIL, proof_of
from tests.mail.signing import Signer, public_key


@pytest.mark.parametrize(
    "record",
    [
        "v=DKIM1; k=rsa; p={p}",
        "p={p}",
        "v=DKIM1;p={p};",
        "v=DKIM1; t=s; p={p}",
        "v=DKIM1; h=sha1:sha256; s=email:other; p={p};; n=a note",
        "v=DKIM1; s=*; g=*; x_new=1; p={p}",
    ],
)
def test_key_record_may_be_written_in_many_ways(record: str) -> None:
    """What RFC 6376 allows is taken, also what dkimpy by itself would not."""
    signer = Signer(record=record)
    assert proof_of(signer.sign(MAIL), signer.answers).result is Proven.YES


@pytest.mark.parametrize(
    ("record", "says"),
    [
        ("v=DKIM1; p=", "the key was revoked"),
        ("v=DKIM1; k=rsa", "has no p="),
        ("v=DKIM2; p={p}", "no key of DKIM"),
        ("k=rsa; v=DKIM1; p={p}", "no key of DKIM"),
        ("v=spf1 -all", "no key of DKIM"),
        ("v=DKIM1; t=y; p={p}", "only for tests"),
        ("v=DKIM1; t=s:y; p={p}", "only for tests"),
        ("v=DKIM1; h=sha1; p={p}", "does not allow sha256"),
        ("v=DKIM1; s=tlsrpt; p={p}", "not for mail"),
        ("v=DKIM1; k=ed25519; p={p}", "for another algorithm"),
        ("v=DKIM1; k=dsa; p={p}", "for another algorithm"),
        ("v=DKIM1; p=AAAA", "no RSA key"),
        ("v=DKIM1; p=MAAFAA==", "no RSA key"),
        ("v=DKIM1; p=!!!!", "p= is no base64"),
        ("v=DKIM1; p={p}; p={p}", "p= is there twice"),
        ("nothing", "is no tag"),
        ("", "has no p="),
        ("v=DKIM1; p=MAkwBwYBKgUBAAA=", "no RSA key"),
        # With an exponent of 1 everybody can sign; the others would take minutes.
        (f"v=DKIM1; p={public_key(2**1024 + 1, 1)}", "the exponent"),
        (f"v=DKIM1; p={public_key(2**1024 + 1, 2**1023 + 1)}", "the exponent"),
        (f"v=DKIM1; p={public_key(2**9000 + 1, 3)}", "the key has 9001 bits"),
        (f"v=DKIM1; p={public_key(0, 3)}", "the key has 0 bits"),
    ],
)
def test_key_that_may_not_be_used_is_not_proven(record: str, says: str) -> None:
    """Each rule for keys is kept; dkimpy leaves out most of them."""
    signer = Signer(record=record)
    proof = proof_of(signer.sign(MAIL), signer.answers)
    assert proof.result is Proven.NO
    assert says in proof.findings[0]


def test_strict_key_is_not_for_names_below() -> None:
    """With `t=s` the identity must be the domain itself."""
    signer = Signer(record="v=DKIM1; t=s; p={p}")
    proof = proof_of(signer.sign(MAIL, tags={"i": "@mail.digitalocean.com"}), signer.answers)
    assert proof.result is Proven.NO
    assert "(t=s)" in proof.findings[0]


def test_key_of_another_is_not_proven() -> None:
    """A signature in DigitalOcean's name with a thief's key does not fit the published one."""
    forger = Signer("digitalocean.com", "s1", owner="thief")
    assert proof_of(forger.sign(MAIL)).result is Proven.NO
