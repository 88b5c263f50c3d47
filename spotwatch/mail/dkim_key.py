# SPDX-License-Identifier: Apache-2.0
"""A key of DKIM as its record in DNS has it, and whether a signature may be checked with it.

RFC 6376, section 3.6.1; RFC 8301 for the length of keys. dkimpy 1.1.8 leaves out the rules for testing mode,
`t=s`, `h=` and `s=`, and takes keys of any size and exponent. It asks no DNS and checks no signature.
"""

from __future__ import annotations

import base64
from dataclasses import dataclass

from spotwatch.mail.dkim_signature import Signature
from spotwatch.mail.dkim_tags import BadTags, read_base64, read_tags, read_words
from spotwatch.mail.extra import require

MIN_RSA_BITS = 1024
"""Below that anybody can forge (RFC 8301, section 3.2)."""
_MAX_RSA_BITS = 8192
# An exponent of 1 signs nothing; a long one makes each check as slow as a signature.
_MIN_EXPONENT = 3
_MAX_EXPONENT_BITS = 32


@dataclass(frozen=True, slots=True)
class Key:
    """A public key that may be used."""

    algorithm: str
    """`rsa` or `ed25519`."""
    public: str
    """Base64."""

    @property
    def record(self) -> bytes:
        """Return it as a record that says nothing else."""
        return f"v=DKIM1; k={self.algorithm}; p={self.public}".encode()


def read_key(text: str, signature: Signature) -> Key:
    """Return the key of a record for checking `signature`.

    Raises:
        BadTags: the record is none, or does not allow it.
    """
    tags = read_tags(text)
    if tags.get("v", "DKIM1") != "DKIM1" or ("v" in tags and next(iter(tags)) != "v"):
        raise BadTags("what DNS has there is no key of DKIM")
    if "p" not in tags:
        raise BadTags("the record has no p=")
    if not tags["p"]:
        raise BadTags("the key was revoked")
    algorithm, _, digest = signature.algorithm.partition("-")
    if tags.get("k", "rsa") != algorithm:
        raise BadTags(f"the key is for another algorithm than {algorithm}")
    if "h" in tags and digest not in read_words(tags["h"]):
        raise BadTags(f"the key does not allow {digest}")
    if not {"*", "email"}.intersection(read_words(tags.get("s", "*"))):
        raise BadTags("the key is not for mail")
    flags = read_words(tags.get("t", ""))
    if "y" in flags:
        raise BadTags("the key is only for tests (t=y)")
    if "s" in flags and signature.identity_domain != signature.domain:
        raise BadTags(f"the key is not for {signature.identity_domain} (t=s)")
    key = Key(algorithm, read_base64("p", tags["p"]))
    if algorithm == "rsa":
        _check_rsa(key)
    return key


def _check_rsa(key: Key) -> None:
    try:
        numbers = require("dkim.crypto").parse_public_key(base64.b64decode(key.public))
    # dkimpy asserts that a NULL is empty.
    except (require("dkim.crypto").UnparsableKeyError, AssertionError) as error:
        raise BadTags("p= is no RSA key") from error
    bits, exponent = numbers["modulus"].bit_length(), numbers["publicExponent"]
    if not MIN_RSA_BITS <= bits <= _MAX_RSA_BITS:
        raise BadTags(f"the key has {bits} bits, not {MIN_RSA_BITS} to {_MAX_RSA_BITS}")
    if exponent < _MIN_EXPONENT or exponent.bit_length() > _MAX_EXPONENT_BITS:
        raise BadTags("the exponent of the key is not of a usual size")
