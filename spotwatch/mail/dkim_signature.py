# SPDX-License-Identifier: Apache-2.0
"""A DKIM-Signature header as it is written (RFC 6376, section 3.5), read more strictly than mail servers do.

It does not know whether a signature holds, nor whose is trusted.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from spotwatch.mail.dkim_tags import BadTags, is_within, read_base64, read_domain, read_tags, read_words
from spotwatch.masking import escape

MAX_VALUE_BYTES = 4096
"""Of one signature header; with copied headers (`z=`) they have about 2000."""
# dkimpy 1.1.8 looks for `b=` by an expression that takes a square of these.
_TOO_MANY_BLANKS = re.compile(rb"\s{65}")
_ALGORITHM = re.compile(r"[a-z0-9]+-[a-z0-9]+")
_FORMS = ("simple", "relaxed")
_MOMENT = re.compile(r"[0-9]{1,12}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Signature:
    """One signature, well formed."""

    index: int
    """Among the signatures of its mail, from the top."""
    domain: str
    """Who signs (`d=`), lower case."""
    selector: str
    """Which key (`s=`), lower case."""
    algorithm: str
    """`a=`, lower case: `rsa-sha256`."""
    headers: tuple[str, ...]
    """What it covers (`h=`), lower case; a name once for each time that it counts."""
    identity_domain: str
    """Domain of the identity (`i=`), else `domain`."""
    forms: tuple[str, str]
    """How headers and body are brought into shape before: `simple` or `relaxed`."""
    has_length: bool
    """Text may have been added after what is signed (`l=`)."""
    expires_at: int | None
    """Seconds since 1970 (`x=`)."""
    signed_at: int | None
    """Seconds since 1970 (`t=`)."""
    digits: Mapping[str, str] = field(repr=False)
    """`b` and `bh`, base64 without blanks."""

    @property
    def key_name(self) -> str:
        """Return where in DNS its key is."""
        return f"{self.selector}._domainkey.{self.domain}"


def read_signature(value: bytes, index: int) -> Signature:
    """Return the signature of a header's value.

    Args:
        value: as it stands, folds included.
        index: which signature of its mail, from the top.

    Raises:
        BadTags: it is none, or is written in a way that no mail server writes.
    """
    if len(value) > MAX_VALUE_BYTES or _TOO_MANY_BLANKS.search(value):
        raise BadTags(f"it is longer than {MAX_VALUE_BYTES} bytes, or has too many blanks in a row")
    tags = read_tags(value.decode("utf-8", "replace"))
    missing = [name for name in ("v", "a", "b", "bh", "d", "h", "s") if not tags.get(name)]
    if missing:
        raise BadTags(f"{missing[0]}= is missing")
    if tags["v"] != "1":
        raise BadTags("v= is not 1")
    if "q" in tags and "dns/txt" not in read_words(tags["q"]):
        raise BadTags("q= is not dns/txt")
    algorithm = tags["a"].lower()
    if not _ALGORITHM.fullmatch(algorithm):
        raise BadTags("a= is no algorithm")
    domain = read_domain("d", tags["d"])
    selector = read_domain("s", tags["s"])
    read_domain("s", f"{selector}._domainkey.{domain}")
    signed_at, expires_at = _moment(tags, "t"), _moment(tags, "x")
    if signed_at is not None and expires_at is not None and expires_at < signed_at:
        raise BadTags("x= is before t=")
    return Signature(
        index=index,
        domain=domain,
        selector=selector,
        algorithm=algorithm,
        headers=read_words(tags["h"]),
        identity_domain=_identity_domain(tags, domain),
        forms=_read_forms(tags.get("c", "simple/simple").lower()),
        has_length="l" in tags,
        expires_at=expires_at,
        signed_at=signed_at,
        digits={name: read_base64(name, tags[name]) for name in ("b", "bh")},
    )


def _identity_domain(tags: Mapping[str, str], domain: str) -> str:
    if "i" not in tags:
        return domain
    _, at, text = tags["i"].rpartition("@")
    identity = read_domain("i", text)
    if not at or not is_within(identity, domain):
        raise BadTags(f"i={escape(tags['i'], limit=80)} is not within d={domain}")
    return identity


def _read_forms(text: str) -> tuple[str, str]:
    headers, _, body = text.partition("/")
    forms = headers.strip(), body.strip() or "simple"
    if not all(form in _FORMS for form in forms):
        raise BadTags("c= is neither simple nor relaxed")
    return forms


def _moment(tags: Mapping[str, str], name: str) -> int | None:
    if name not in tags:
        return None
    if not _MOMENT.fullmatch(tags[name]):
        raise BadTags(f"{name}= is no time")
    return int(tags[name])
