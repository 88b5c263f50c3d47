# SPDX-License-Identifier: Apache-2.0
"""One mail through all stages: read, proven, understood and judged, without holding up the loop.

Whatever cannot be finished ends as a weak judgement, which may make a trainer save and never stop: a mail too
hard to read must not be the way to silence. It keeps nothing, and asks nobody but DNS.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import ParamSpec, Protocol, TypeVar

from spotwatch.config import Mail as Rules
from spotwatch.errors import Malformed
from spotwatch.mail.dkim import key_names, prove
from spotwatch.mail.judging import judge
from spotwatch.mail.keys import KeyAnswer
from spotwatch.mail.model import Delivery, Droplet, Judgement, Mail
from spotwatch.mail.patterns import Patterns
from spotwatch.mail.reading import read_mail
from spotwatch.mail.understanding import understand
from spotwatch.masking import escape
from spotwatch.model import Evidence

LIMIT_SECONDS = 4.0
"""For one mail, waiting included: the listener itself gives up after five."""
_LEAST_SECONDS = 0.5

T = TypeVar("T")
P = ParamSpec("P")


class Keys(Protocol):
    """Where the keys of DKIM come from; never raises, and has a time limit of its own."""

    async def fetch(self, names: Sequence[str]) -> Mapping[str, KeyAnswer]:
        """Return an answer for each name."""


class _TooHard(Exception):
    """A stage did not end in time."""


class MailDesk:
    """Judges mail, one at a time.

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
        self._turn = asyncio.Semaphore(1)

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
        try:
            mail, names = await self._in_turn(until, self._read, delivery.raw, now)
            async with asyncio.timeout_at(until):
                keys = await self._keys.fetch(names) if names else {}
            return await self._in_turn(until, self._judge, mail, keys, delivery, tuple(droplets), now)
        except Malformed:
            raise
        except _TooHard:
            # Temporary too: on a machine that is busy enough a genuine mail ends here.
            why = f"it took longer than {self._limit_seconds:g} s"
            return (_weak(delivery, why, is_temporary=True, is_kept=True),)
        except TimeoutError:
            why = f"its turn did not come within {self._limit_seconds:g} s"
            return (_weak(delivery, why, is_temporary=True, is_kept=False),)
        except Exception as error:  # noqa: BLE001 - a mail that breaks a stage must not go unheard
            why = f"{type(error).__name__}: {error}"
            return (_weak(delivery, why, is_temporary=False, is_kept=True),)

    def _read(self, raw: bytes, now: datetime) -> tuple[Mail, tuple[str, ...]]:
        """Return a mail, and the names in DNS of the keys that could prove it."""
        mail = read_mail(raw)
        return mail, key_names(mail, trusted_domains=self._rules.trusted_domains, now=now)

    def _judge(
        self,
        mail: Mail,
        keys: Mapping[str, KeyAnswer],
        delivery: Delivery,
        droplets: tuple[Droplet, ...],
        now: datetime,
    ) -> tuple[Judgement, ...]:
        proof = prove(mail, keys, trusted_domains=self._rules.trusted_domains, now=now)
        reading = understand(
            mail, droplets=droplets, patterns=self._patterns, received_at=delivery.received_at
        )
        return judge(
            mail,
            proof,
            reading,
            delivery=delivery,
            rules=self._rules,
            trust_relay=self._trust_relay,
            now=now,
        )

    async def _in_turn(self, until: float, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run `work` in a thread, alone; its turn lasts until it ends, whoever still waits for it.

        A thread cannot be ended: if waiting for it ended its turn, hostile mails would fill all threads.

        Raises:
            TimeoutError: its turn did not come until then.
            _TooHard: it did not end until then.
        """
        async with asyncio.timeout_at(until):
            await self._turn.acquire()
        thread = asyncio.create_task(asyncio.to_thread(work, *args, **kwargs))
        thread.add_done_callback(self._end_turn)
        try:
            async with asyncio.timeout_at(until):
                return await asyncio.shield(thread)
        except TimeoutError as error:
            raise _TooHard from error

    def _end_turn(self, thread: asyncio.Task[T]) -> None:
        self._turn.release()
        if not thread.cancelled():
            # Looked at, so that asyncio does not complain when nobody waits any more.
            thread.exception()


def _weak(delivery: Delivery, why: str, *, is_temporary: bool, is_kept: bool) -> Judgement:
    """Return what follows from a mail that no stage could finish: a flush, whomever it concerns."""
    said = escape(why)
    return Judgement(
        event="reclaim",
        evidence=Evidence.WEAK,
        result="unproven",
        droplet=None,
        at=None,
        signed_at=delivery.received_at,
        message_key=hashlib.sha256(delivery.raw).hexdigest(),
        is_temporary=is_temporary,
        is_kept=is_kept,
        detail=f"mail by {delivery.service} that could not be judged: {said}",
        lines=(f"it could not be judged, so it may only flush: {said}",),
    )
