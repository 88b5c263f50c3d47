# SPDX-License-Identifier: Apache-2.0
"""Which mail a signature can prove, and which signature may prove it, before any key is asked for.

A signature alone says little: it may be a stranger's, cover half the text, or leave open how the text is
read. Whether it holds is checked elsewhere.
"""

from __future__ import annotations

import importlib.util
import re
from collections import Counter
from collections.abc import Sequence
from datetime import datetime

from spotwatch.mail.dkim_signature import Signature
from spotwatch.mail.dkim_tags import is_within
from spotwatch.mail.model import Mail
from spotwatch.masking import escape

ONCE = ("from", "subject", "date", "to", "message-id", "content-type", "content-transfer-encoding")
"""Of two of these a signature covers one, and a reader may show the other (RFC 6376, section 8.15)."""
# Without them the mail could be another's, old, for somebody else, or about something else.
_SIGNED = ("from", "subject", "date", "to")
# Whoever may change these chooses how the body is read. RFC 6376 leaves it to signers to cover them (section
# 5.4.1), so they may be unsigned where there is one reading only.
_HOW_TO_READ = ("content-type", "content-transfer-encoding")
# How far the signer's clock and ours may differ.
_SKEW_SECONDS = 600.0

# What every reader takes for the same header: a name, a colon, no control character. dkimpy passes over lines
# beginning with `From `, where the standard library sees the body begin, and sees no line end in a lone CR.
_FIELD = re.compile(rb"([!-9;-~]+):((?:[\t\x20-\x7e\x80-\xff]++|\r\n[ \t])*+)")
_NEXT_FIELD = re.compile(rb"\r\n(?![ \t])")
# A relaxed signature allows more blanks at the end of a line, where they turn the mark of a line that goes on
# into text: `spot-1=` of one Droplet and a line `0` of what was another's name.
_OPENED_SOFT_BREAK = re.compile(rb"=[ \t]+\r\n")

Fields = Sequence[tuple[str, bytes]]
"""The headers of a mail: names in lower case, values as they stand."""


def read_head(raw: bytes) -> tuple[Fields, str]:
    """Return the headers of a mail, names in lower case, values as they stand; or why readers may differ."""
    head, end, _ = raw.partition(b"\r\n\r\n")
    fields = []
    for line in _NEXT_FIELD.split(head) if head else ():
        found = _FIELD.fullmatch(line)
        if found is None:
            return (), f"its headers can be read in two ways: {escape(line.decode('latin-1'), limit=60)!r}"
        fields.append((found[1].decode("ascii").lower(), found[2]))
    return fields, "" if end else "its headers do not end"


def why_refused(mail: Mail, fields: Fields) -> str:
    """Return why no signature could prove this mail; empty when one could."""
    counts = Counter(name for name, _ in fields)
    for name in ONCE:
        if counts[name] > 1:
            return f"it has {counts[name]} {name.title()} headers: which one counts is open"
        if counts[name] != mail.header_counts.get(name, 0):
            return f"its {name.title()} header can be read in two ways"
    if not counts["dkim-signature"]:
        return "it has no DKIM signature"
    if not _domain_of(mail.sender):
        return "its From is not one plain address"
    return ""


def why_unfit(mail: Mail, signature: Signature, trusted_domains: Sequence[str], now: datetime | None) -> str:
    """Return why this signature proves nothing, whatever its key says; empty when it could."""
    trusted = trusting(signature.domain, trusted_domains)
    if not trusted:
        return "not a trusted domain"
    if not any(is_within(_domain_of(mail.sender), domain) for domain in trusted):
        return f"it does not sign for its sender {escape(mail.sender, limit=80)}"
    return (
        _why_unsafe(signature.algorithm)
        or _why_incomplete(mail, signature)
        or why_untimely(signature, mail.date, now)
    )


def trusting(domain: str, trusted_domains: Sequence[str]) -> list[str]:
    """Return those of `trusted_domains` that `domain` is in."""
    return [trusted for trusted in trusted_domains if is_within(domain, trusted)]


def _why_unsafe(algorithm: str) -> str:
    if algorithm not in {"rsa-sha256", "ed25519-sha256"}:
        return f"{algorithm} can be forged, or is not known"
    if algorithm.startswith("ed25519") and importlib.util.find_spec("nacl") is None:
        return "this installation cannot check ed25519; pip install pynacl"
    return ""


def _why_incomplete(mail: Mail, signature: Signature) -> str:
    if signature.has_length:
        return "it leaves open what follows the signed text (l=)"
    unsigned = [name.title() for name in _SIGNED if name not in signature.headers]
    if unsigned:
        return f"it does not sign {', '.join(unsigned)}"
    loose = [name.title() for name in _HOW_TO_READ if name not in signature.headers]
    if loose and (mail.problems or mail.is_forwarded):
        return f"it does not sign {', '.join(loose)}, and not all can be read in one way only"
    if signature.forms[1] == "relaxed" and _has_opened_soft_break(mail.raw):
        return "blanks at the end of a line may have been added, and change the text"
    return ""


def why_untimely(signature: Signature, dated: datetime | None, now: datetime | None) -> str:
    """Return why a signature does not hold at this time (`x=`, `t=`); empty when it does."""
    signed_at, expires_at, moment = signature.signed_at, signature.expires_at, now or dated
    if moment is not None and expires_at is not None and expires_at < moment.timestamp() - _SKEW_SECONDS:
        return "it has expired (x=)"
    if now is not None and signed_at is not None and signed_at > now.timestamp() + _SKEW_SECONDS:
        return "it was signed in the future (t=)"
    return ""


def _has_opened_soft_break(raw: bytes) -> bool:
    return b"quoted-printable" in raw.lower() and _OPENED_SOFT_BREAK.search(raw) is not None


def _domain_of(address: str) -> str:
    return address.rpartition("@")[2] if "@" in address else ""
