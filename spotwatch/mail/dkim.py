# SPDX-License-Identifier: Apache-2.0
"""Whether a mail was signed by a domain that is trusted, and for its sender: DKIM, RFC 6376.

dkimpy checks whether a signature holds. Nothing here asks DNS or judges words.
"""

from __future__ import annotations

import logging
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from spotwatch.mail.dkim_key import Key, read_key
from spotwatch.mail.dkim_rules import Fields, read_head, trusting, why_refused, why_unfit, why_untimely
from spotwatch.mail.dkim_signature import Signature, read_signature
from spotwatch.mail.dkim_tags import BadTags
from spotwatch.mail.extra import require
from spotwatch.mail.keys import MAX_NAMES, KeyAnswer, KeyState
from spotwatch.mail.model import Mail, Proof, Proven
from spotwatch.masking import escape

MAX_SIGNATURES = MAX_NAMES
"""So many are looked at, those of trusted domains first."""

MAX_TRIES = 2
"""With one key: a signer signs once, and who copies signatures is not to be heard five times as long."""

_OTHER_BODY = "the body is not the one that was signed"
_BLANKS = re.compile(rb"[ \t]+")


def signatures(mail: Mail, *, trusted_domains: Sequence[str] = ()) -> tuple[Signature, ...]:
    """Return the well-formed signatures of a mail, at most five: trusted domains' first, then by place."""
    fields, _ = read_head(mail.raw)
    return tuple(found for found in _signatures(fields, trusted_domains) if isinstance(found, Signature))


def key_names(mail: Mail, *, trusted_domains: Sequence[str], now: datetime | None = None) -> tuple[str, ...]:
    """Return the names in DNS of the keys that `prove` needs: none for what cannot prove the mail anyway."""
    fields, why = read_head(mail.raw)
    if why or why_refused(mail, fields):
        return ()
    usable = (
        found.key_name
        for found in _signatures(fields, trusted_domains)
        if isinstance(found, Signature) and not why_unfit(mail, found, trusted_domains, now)
    )
    return tuple(dict.fromkeys(usable))


def prove(
    mail: Mail,
    keys: Mapping[str, KeyAnswer],
    *,
    trusted_domains: Sequence[str],
    now: datetime | None = None,
    is_clock_set: bool = True,
) -> Proof:
    """Return whether a signature of a trusted domain holds for this mail and its sender.

    Args:
        mail: as read; one that its service has put together anew has no signature that holds.
        keys: what DNS says, for `key_names` at least.
        trusted_domains: lower case; the signer and the sender must both be within the same one.
        now: what `x=` and `t=` are compared with; None: `x=` with the mail's own date, `t=` with nothing.
        is_clock_set: whether `now` may be relied on; else what fits it not is not known yet.

    Raises:
        ConfigError: dkimpy is not installed.
    """
    fields, why = read_head(mail.raw)
    why = why or why_refused(mail, fields)
    if why:
        return Proof(result=Proven.NO, findings=(why,))
    checker = _Checker(mail.raw)
    tries: Counter[str] = Counter()
    findings: list[str] = []
    is_open = False
    for found in _signatures(fields, trusted_domains):
        if isinstance(found, str):
            findings.append(found)
            continue
        why = why_unfit(mail, found, trusted_domains, now)
        answer = keys.get(found.key_name)
        if not why and (answer is None or answer.state is KeyState.NO_ANSWER):
            is_open = True
            why = f"no answer from DNS: {answer.why}" if answer else "DNS was not asked"
        elif why and not is_clock_set and why == why_untimely(found, mail.date, now):
            is_open = True
            why += ", or the clock is wrong, which is not set yet"
        elif not why and answer is not None:
            tries[found.key_name] += 1
            is_one_more = tries[found.key_name] > MAX_TRIES
            why = (
                "it is one more by this key, and not looked at"
                if is_one_more
                else checker.why_not(found, answer)
            )
        if not why:
            note = f" ({answer.why})" if answer and answer.why else ""
            findings.append(f"{_name(found)}: holds{note}")
            return Proof(
                result=Proven.YES,
                domain=found.domain,
                signed_headers=_covered(fields, found),
                findings=tuple(findings),
            )
        findings.append(f"{_name(found)}: {why}")
    return Proof(result=Proven.UNKNOWN if is_open else Proven.NO, findings=tuple(findings))


class _Checker:
    """dkimpy, for one mail."""

    def __init__(self, raw: bytes) -> None:
        self._dkim = require("dkim")
        # Its own logger would repeat what is foreign in the mail, as errors.
        silent = logging.Logger("dkimpy", level=logging.CRITICAL + 1)  # noqa: LOG001 - no setting wakes it
        self._mail: Any = self._dkim.DKIM(raw, logger=silent)
        self._body = self._mail.body
        # A mail may carry one genuine signature many times, above a body of any size.
        self._wrong_bodies: set[tuple[str, str]] = set()
        self._headers = [field for field in self._mail.headers if field[0].lower() == b"dkim-signature"]

    def why_not(self, signature: Signature, answer: KeyAnswer) -> str:
        """Return why a signature does not hold; empty when it does."""
        if answer.state is KeyState.MISSING:
            return f"no key {signature.key_name}: {answer.why}"
        try:
            key = read_key(answer.text, signature)
        except BadTags as error:
            return str(error)
        return self._why_not(signature, key)

    def _why_not(self, signature: Signature, key: Key) -> str:
        header_form, body_form = signature.forms
        tags = {"a": signature.algorithm, "c": f"{header_form}/{body_form}", **signature.digits}
        tags |= {"d": signature.domain, "s": signature.selector}
        body_key = (body_form, tags.pop("bh"))
        try:
            # The headers first, for which dkimpy needs no bh=: who cannot sign costs us no look at the body.
            if not self._holds(signature, key, tags):
                return "the headers are not those that were signed, or not with this key"
            if body_key in self._wrong_bodies:
                return _OTHER_BODY
            # A run of blanks takes dkimpy the square of its length, two minutes for 256 KiB, but not when it
            # has the shape already that relaxed bodies have in the end.
            self._mail.body = _BLANKS.sub(b" ", self._body) if body_form == "relaxed" else self._body
            is_right = self._holds(signature, key, {**tags, "bh": body_key[1]})
        except self._dkim.ValidationError:
            self._wrong_bodies.add(body_key)
            return _OTHER_BODY
        # ValueError: pynacl's for a signature of another length.
        except (self._dkim.DKIMException, ValueError) as error:
            return f"it cannot be checked: {escape(str(error))}"
        return "" if is_right else "it does not hold"

    def _holds(self, signature: Signature, key: Key, tags: Mapping[str, str]) -> bool:
        # Not verify(): it compares t= and x= with a clock of its own, and falls over an i= without an @.
        return bool(
            self._mail.verify_sig(
                {name.encode(): text.encode() for name, text in tags.items()},
                [name.encode() for name in signature.headers],
                self._headers[signature.index],
                lambda *_, **__: key.record,
            )
        )


def _signatures(fields: Fields, trusted_domains: Sequence[str]) -> list[Signature | str]:
    """Return the signatures that are looked at, and a finding for each that is none."""
    values = [value for name, value in fields if name == "dkim-signature"]
    found: list[Signature | str] = []
    for index, value in enumerate(values):
        try:
            found.append(read_signature(value, index))
        except BadTags as error:
            found.append(f"signature {index + 1}: {error}")
    found.sort(key=lambda one: isinstance(one, str) or not trusting(one.domain, trusted_domains))
    if len(found) > MAX_SIGNATURES:
        found[MAX_SIGNATURES:] = [f"{len(found) - MAX_SIGNATURES} more signatures were not looked at"]
    return found


def _covered(fields: Fields, signature: Signature) -> frozenset[str]:
    """Return the names that are signed as often as they are there."""
    counts = Counter(name for name, _ in fields)
    signed = Counter(signature.headers)
    return frozenset(name for name in signed if signed[name] >= counts[name])


def _name(signature: Signature) -> str:
    return f"{signature.domain} ({signature.selector}, {signature.algorithm})"
