# SPDX-License-Identifier: Apache-2.0
"""One mail through all stages: read, proven, understood and judged, without holding up the loop.

Proof comes before understanding: the headers of each mail are read first and its signature is checked, which
is cheap, and what is proven goes before all the rest, in a thread of its own. The rest only flushes, and
where too much of it comes it does so unread. Whatever cannot be finished ends as a weak judgement: a mail too
hard to read must not be the way to silence. It keeps nothing, and asks nobody but DNS.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import Protocol

from spotwatch.config import Mail as Rules
from spotwatch.errors import Malformed
from spotwatch.mail.dkim import key_names, prove
from spotwatch.mail.evidence import is_form_signed, is_of_the_clock, unproven
from spotwatch.mail.judging import judge
from spotwatch.mail.keys import KeyAnswer
from spotwatch.mail.model import MAX_MAIL_BYTES, Delivery, Droplet, Judgement, Mail, Proof, Proven
from spotwatch.mail.patterns import Patterns
from spotwatch.mail.reading import read_mail, read_top
from spotwatch.mail.turns import NoTurn, TooHard, Turns
from spotwatch.mail.understanding import understand
from spotwatch.masking import escape
from spotwatch.model import Evidence

LIMIT_SECONDS = 4.0
"""For one mail, waiting included: the listener itself gives up after five."""
_LEAST_SECONDS = 0.5
# The listener has 64 connections, and each mail that waits holds one of them.
_MOST_LOOKS = 64
_MOST_LOOK_BYTES = 8 * 1024 * 1024
_MOST_UNPROVEN = 12
_MOST_UNPROVEN_BYTES = 1024 * 1024
# So many unread mails are one: what follows from each of them is the same flush.
_UNREAD_SECONDS = 60.0
_PROMISING, _KNOWN, _NEW = 0, 1, 2
"""What is proven, what was looked at already, the rest: nobody is kept waiting for more than is begun."""


class Keys(Protocol):
    """Where the keys of DKIM come from; never raises, and has a time limit of its own."""

    async def fetch(self, names: Sequence[str]) -> Mapping[str, KeyAnswer]:
        """Return an answer for each name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Case:
    """A mail with all that its judgement needs."""

    delivery: Delivery
    droplets: tuple[Droplet, ...]
    keys: Mapping[str, KeyAnswer]
    now: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class _Weight:
    """What the top of a mail says of its worth."""

    is_promising: bool = False
    """It may be strong, as far as its proof goes."""
    may_be_strong: bool = False
    """It may be, or may be later."""
    disproof: Proof | None = None
    """That no signature holds, which no look at the rest makes better."""


class MailDesk:
    """Judges mail, one at a time; what may be strong does not wait for what cannot.

    Args:
        rules: what proves a mail.
        patterns: what its words mean.
        keys: where the signers' keys come from.
        trust_relay: a service whose signature covers the mail proves it.
        limit_seconds: for one mail, waiting for its turn included.
    """

    def __init__(
        self,
        rules: Rules,
        patterns: Patterns,
        keys: Keys,
        *,
        trust_relay: bool,
        limit_seconds: float = LIMIT_SECONDS,
    ) -> None:
        self._rules = rules
        self._patterns = patterns
        self._keys = keys
        self._trust_relay = trust_relay
        self._limit_seconds = limit_seconds
        self._first = Turns(most_waiting=_MOST_LOOKS, most_bytes=_MOST_LOOK_BYTES)
        self._rest = Turns(most_waiting=_MOST_UNPROVEN, most_bytes=_MOST_UNPROVEN_BYTES, after=self._first)

    async def consider(
        self, delivery: Delivery, droplets: Sequence[Droplet], now: datetime, *, spent_seconds: float = 0.0
    ) -> tuple[Judgement, ...]:
        """Return what follows from a mail: one judgement a Droplet that it names, or one for none.

        Args:
            delivery: its service has authenticated it.
            droplets: those that it may concern.
            now: aware.
            spent_seconds: what others have taken of the time for this mail.

        Raises:
            Malformed: it is no mail at all, or beyond the limits of size.
        """
        until = asyncio.get_running_loop().time() + max(_LEAST_SECONDS, self._limit_seconds - spent_seconds)
        size = len(delivery.raw)
        # Until its proof is known, it may be the genuine one; one that is cut off is not.
        may_be_strong = size <= MAX_MAIL_BYTES
        try:
            mail, names = await self._first.run(
                partial(self._look, delivery.raw, now), rank=_NEW, size=size, until=until
            )
            async with asyncio.timeout_at(until):
                keys = await self._keys.fetch(names) if names else {}
            case = _Case(delivery=delivery, droplets=tuple(droplets), keys=keys, now=now)
            weight = await self._first.run(
                partial(self._weigh, mail, case), rank=_KNOWN, size=size, until=until
            )
            may_be_strong = weight.may_be_strong
            turns, rank = (self._first, _PROMISING) if weight.is_promising else (self._rest, _NEW)
            return await turns.run(
                partial(self._judge, case, weight.disproof), rank=rank, size=size, until=until
            )
        except Malformed:
            raise
        except TooHard:
            why = f"it took longer than {self._limit_seconds:g} s"
            return (_weak(delivery, why, is_temporary=may_be_strong, is_kept=True),)
        except NoTurn as error:
            key = "" if may_be_strong else f"unread-{now.timestamp() // _UNREAD_SECONDS:.0f}"
            return (_weak(delivery, str(error), is_temporary=may_be_strong, is_kept=False, key=key),)
        except TimeoutError:
            why = f"no answer from DNS within {self._limit_seconds:g} s"
            return (_weak(delivery, why, is_temporary=True, is_kept=False),)
        except Exception as error:  # noqa: BLE001 - a mail that breaks a stage must not go unheard
            why = f"{type(error).__name__}: {error}"
            return (_weak(delivery, why, is_temporary=False, is_kept=True),)

    def _look(self, raw: bytes, now: datetime) -> tuple[Mail, tuple[str, ...]]:
        """Return the top of a mail, and the names in DNS of the keys that could prove it."""
        mail = read_top(raw)
        return mail, key_names(mail, trusted_domains=self._rules.trusted_domains, now=now)

    def _weigh(self, mail: Mail, case: _Case) -> _Weight:
        at_best = Proof(
            result=Proven.YES,
            domain=mail.sender.rpartition("@")[2],
            signed_headers=frozenset(mail.header_counts),
        )
        # Others own mails of DigitalOcean too, and may send us as many of them as they like.
        if mail.problems or self._doubts(mail, at_best, case):
            return _Weight(may_be_strong=is_of_the_clock(mail, case.delivery, self._rules, case.now))
        proof = self._prove(mail, case)
        is_promising = not self._doubts(mail, proof, case)
        return _Weight(
            is_promising=is_promising,
            may_be_strong=is_promising or proof.result is Proven.UNKNOWN,
            disproof=proof if proof.result is Proven.NO else None,
        )

    def _prove(self, mail: Mail, case: _Case) -> Proof:
        return prove(
            mail,
            case.keys,
            trusted_domains=self._rules.trusted_domains,
            now=case.now,
            is_clock_set=case.delivery.is_clock_set,
        )

    def _doubts(self, mail: Mail, proof: Proof, case: _Case) -> tuple[str, ...]:
        return unproven(
            mail,
            proof,
            delivery=case.delivery,
            rules=self._rules,
            trust_relay=self._trust_relay,
            now=case.now,
        )

    def _judge(self, case: _Case, disproof: Proof | None) -> tuple[Judgement, ...]:
        mail = read_mail(case.delivery.raw)
        # Once more: what is in the body can make a signature unfit that its top allows.
        proof = disproof or self._prove(mail, case)
        if mail.problems and is_form_signed(proof):
            mail = read_mail(case.delivery.raw, is_form_signed=True)
        reading = understand(
            mail,
            droplets=case.droplets,
            patterns=self._patterns,
            received_at=case.delivery.received_at,
        )
        return judge(
            mail,
            proof,
            reading,
            delivery=case.delivery,
            rules=self._rules,
            trust_relay=self._trust_relay,
            now=case.now,
        )


def _weak(delivery: Delivery, why: str, *, is_temporary: bool, is_kept: bool, key: str = "") -> Judgement:
    """Return what follows from a mail that no stage could finish: a flush, whomever it concerns."""
    said = escape(why)
    return Judgement(
        event="reclaim",
        evidence=Evidence.WEAK,
        result="unproven",
        droplet=None,
        at=None,
        signed_at=delivery.received_at,
        message_key=key or hashlib.sha256(delivery.raw).hexdigest(),
        is_temporary=is_temporary,
        is_kept=is_kept,
        detail=f"mail by {delivery.service} that could not be judged: {said}",
        lines=(f"it could not be judged, so it may only flush: {said}",),
    )
