# SPDX-License-Identifier: Apache-2.0
"""`POST /webhook/digitalocean/<service>`: a mail, as one of the configured services hands it over.

Whether a request is authentic is the service's business, what a mail means is the desk's. Here each counts
once, concerns this Droplet, and is answered in codes that its service understands. Only what is proven is
remembered for good: a flood of the rest must not fill the memory that the one genuine mail needs.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Literal

from spotwatch.errors import Malformed
from spotwatch.kept_bodies import KeptBodies
from spotwatch.mail.desk import MailDesk
from spotwatch.mail.extra import require
from spotwatch.mail.inbound import Refused, Service
from spotwatch.mail.keys import KeyCache, SystemResolver
from spotwatch.mail.mailbox import message_of
from spotwatch.mail.model import Delivery, Droplet, Judgement
from spotwatch.mail.patterns import default_patterns, load_patterns
from spotwatch.model import Evidence
from spotwatch.providers import Context
from spotwatch.providers._do_identity import Known
from spotwatch.providers._do_memory import Memory
from spotwatch.providers._do_services import MEMORY_DOUBT, PASSING_DOUBTS, Door
from spotwatch.providers._do_slot import PROVIDER_NAME, Claim
from spotwatch.received import Received, Verdict

_KEPT_AS = "mail"
_MAX_PENDING = 16
_NOT_FOUND = Verdict(status=404, result="other")
_DUPLICATE = Verdict(status=200, result="duplicate")
_FULL = Verdict(status=503, result="full")
_PENDING = Verdict(status=503, result="pending")


def make_desk(context: Context) -> MailDesk:
    """Return a desk that judges by the configured rules and patterns, with keys from DNS.

    Raises:
        ConfigError: the patterns are wrong, or `spotwatch[mail]` is not installed.
    """
    rules = context.mail
    # Without it every mail would be weak, and nobody would know before the one that matters.
    require("dkim")
    return MailDesk(
        rules,
        load_patterns(Path(rules.patterns_file)) if rules.patterns_file else default_patterns(),
        KeyCache(SystemResolver(rules.resolvers), context.clock),
        trust_relay=context.trust_relay,
    )


class MailRoute:
    """Takes mail from services.

    Args:
        context: clock, places, and whether the clock is right.
        doors: the services, by name.
        desk: judges.
        memory: what mail leaves behind.
        known: returns who this Droplet is.
        wake: called when there is something new.
    """

    def __init__(
        self,
        context: Context,
        doors: Mapping[str, Door],
        desk: MailDesk,
        memory: Memory,
        *,
        known: Callable[[], Known],
        wake: Callable[[], None],
    ) -> None:
        self._context = context
        self._doors = doors
        self._desk = desk
        self._memory = memory
        self._known = known
        self._wake = wake
        self._kept_bodies = KeptBodies(context.state_dir)
        self._pending: dict[str, tuple[Service, Delivery]] = {}

    async def receive(self, request: Received) -> Verdict:
        """Let the service look at the raw bytes, then judge the mail in them."""
        name, _, more = request.path.partition("/")
        door = self._doors.get(name)
        if door is None or more not in ("", "mime"):
            return _NOT_FOUND
        began = asyncio.get_running_loop().time()
        try:
            opened = await door.open(request, self._context)
        except Refused as refused:
            return replace(refused.verdict, why=f"{name}: {refused.why}")
        if isinstance(opened, Verdict):
            return opened
        # A service may have had to fetch the certificate of its signer first.
        spent_seconds = asyncio.get_running_loop().time() - began
        verdict = await self._consider(door.service, opened, spent_seconds=spent_seconds)
        return replace(await self._memory.kept(verdict), is_vouched=True)

    async def settle(self) -> None:
        """Judge what had to wait until it was known who this Droplet is."""
        waiting, self._pending = self._pending, {}
        for service, delivery in waiting.values():
            await self._consider(service, delivery)

    async def _consider(self, service: Service, delivery: Delivery, *, spent_seconds: float = 0.0) -> Verdict:
        known, now = self._known(), self._context.clock.now()
        if known.droplet_id is None:
            return self._put_off(service, delivery)
        # With the Droplet's number: what a copied disk remembers was another's.
        seen_id = f"{known.droplet_id}:{service.name}:{delivery.replay_id}"
        for memory in (self._memory.proven, self._memory.unproven):
            novelty = memory.novelty(seen_id, delivery.raw, signed_at=delivery.signed_at or now, now=now)
            if novelty == "duplicate":
                return _DUPLICATE
            if novelty == "reused":
                return Verdict(status=service.permanent_status, result="replayed")
            if novelty == "unknown":
                delivery = replace(delivery, doubts=(*delivery.doubts, MEMORY_DOUBT))
        try:
            judgements = await self._desk.consider(
                delivery, [_droplet(known, known.droplet_id)], now, spent_seconds=spent_seconds
            )
        except Malformed as error:
            why = f"{service.name}: {error}"
            return Verdict(status=service.permanent_status, result="malformed", why=why)
        if any(one.is_kept for one in judgements):
            is_proven = all(one.result != "unproven" for one in judgements)
            file = await asyncio.to_thread(
                self._kept_bodies.keep, PROVIDER_NAME, _KEPT_AS, delivery.raw, is_proven=is_proven
            )
            if file:
                judgements = tuple(replace(one, detail=f"{one.detail}; kept as {file}") for one in judgements)
        verdicts = [self._act(service, delivery, seen_id, self._of_our_time(one)) for one in judgements]
        # The first in this order: what is to come again, what has changed something, the rest.
        return min(verdicts, key=lambda verdict: (verdict.status != _FULL.status, -verdict.status))

    def _act(self, service: Service, delivery: Delivery, seen_id: str, judgement: Judgement) -> Verdict:
        """Put what follows from a mail into the inbox."""
        if judgement.event == "none":
            return self._leave(service, delivery, judgement)
        is_proven = judgement.evidence is Evidence.STRONG
        comes_again = judgement.is_temporary or not PASSING_DOUBTS.isdisjoint(delivery.doubts)
        if judgement.event == "cancel" and not is_proven:
            # It ends nothing, and is not remembered: with its proof it will be new.
            return Verdict(status=503 if comes_again else 200, result=judgement.result)
        mail_id = f"{self._known().droplet_id}:{judgement.event}:{judgement.message_key}"
        found = self._novelty(mail_id, is_proven=is_proven)
        if found == "duplicate":
            return _DUPLICATE
        outcome = "refused"
        if found == "new" or judgement.event != "cancel":
            outcome = self._memory.inbox.take(
                Claim(
                    event=judgement.event,
                    # What cannot be remembered could be replayed: it may flush, and comes again.
                    evidence=judgement.evidence if found == "new" else Evidence.WEAK,
                    at=judgement.at,
                    signed_at=judgement.signed_at,
                    received_at=delivery.received_at,
                    detail=judgement.detail,
                    message=message_of(judgement.message_key),
                )
            )
            self._wake()
        if found == "full":
            return _FULL
        if comes_again:
            return Verdict(status=503, result=judgement.result)
        memory = self._memory.proven if is_proven else self._memory.unproven
        for one, body in ((seen_id, delivery.raw), (mail_id, b"")):
            memory.remember(one, body, now=self._context.clock.now())
        has_changed = outcome == "accepted"
        return Verdict(
            status=202 if has_changed else 200, result=judgement.result if has_changed else outcome
        )

    def _leave(self, service: Service, delivery: Delivery, judgement: Judgement) -> Verdict:
        """Do nothing about a mail, unless it may concern us after all."""
        known = self._known()
        if judgement.result == "not_mine" and not (known.is_whole or known.names):
            # It may name us by a hostname that is not known yet.
            return self._put_off(service, delivery)
        return Verdict(status=200, result=judgement.result)

    def _of_our_time(self, judgement: Judgement) -> Judgement:
        """Return what a mail is worth: one from before this Droplet may be about another of its name."""
        clock = self._context.clock
        booted_at = clock.now() - timedelta(seconds=clock.boot())
        is_ours = not self._memory.inbox.is_before_us(judgement.signed_at, booted_at=booted_at)
        if is_ours or judgement.evidence is Evidence.WEAK:
            return judgement
        return replace(
            judgement,
            evidence=Evidence.WEAK,
            result="unproven",
            detail=f"{judgement.detail}; weak: it is older than this Droplet, as far as that is known here",
        )

    def _novelty(self, mail_id: str, *, is_proven: bool) -> Literal["duplicate", "full", "new"]:
        """Tell whether a mail has had its effect, whichever service brought it, or could not be remembered.

        A forged copy that comes first does not hide the genuine mail; one that comes later is a duplicate.
        """
        now = self._context.clock.now()
        memories = [self._memory.proven] if is_proven else [self._memory.proven, self._memory.unproven]
        found = {one.novelty(mail_id, b"", signed_at=now, now=now) for one in memories}
        if "duplicate" in found:
            return "duplicate"
        return "full" if is_proven and "full" in found else "new"

    def _put_off(self, service: Service, delivery: Delivery) -> Verdict:
        """Keep a mail until it is known who this Droplet is."""
        key = f"{service.name}:{delivery.replay_id}"
        if len(self._pending) >= _MAX_PENDING and key not in self._pending:
            return _FULL
        self._pending.setdefault(key, (service, delivery))
        return _PENDING


def _droplet(known: Known, droplet_id: int) -> Droplet:
    """Return this Droplet, as far as it is known."""
    identity = known.identity
    return Droplet(
        droplet_id=droplet_id,
        names=known.names,
        hostname="" if identity is None else identity.hostname,
        addresses=frozenset() if identity is None else identity.addresses,
    )
