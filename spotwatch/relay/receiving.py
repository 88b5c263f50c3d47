# SPDX-License-Identifier: Apache-2.0
"""What is posted to the relay: mail by any configured service, signed notices as JSON, for the whole fleet.

Each counts once, and is answered with 2xx only when the letters that follow from it cannot be lost any more.
It does not know who signs a mail, what one means, or where the mailbox is.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace

from spotwatch.errors import Malformed
from spotwatch.kept_bodies import KeptBodies
from spotwatch.mail.desk import MailDesk
from spotwatch.mail.inbound import Refused, Service
from spotwatch.mail.mailbox import Letter
from spotwatch.mail.model import Delivery, Judgement
from spotwatch.model import Evidence
from spotwatch.providers import Context
from spotwatch.providers._do_message import Message, parse
from spotwatch.providers._do_push import verified
from spotwatch.providers._do_services import MEMORY_DOUBT, PASSING_DOUBTS, Door
from spotwatch.received import Received, Verdict
from spotwatch.relay.fleet import Fleet
from spotwatch.relay.letters import besides, of_judgements, of_notice
from spotwatch.relay.metrics import NOBODY, NOTICES
from spotwatch.relay.outbox import Outbox
from spotwatch.relay.replays import RelayReplays
from spotwatch.webhooks import Rejected, signed_at

_KEPT_AS = "mail"
_UNAVAILABLE = 503
_NOT_FOUND = Verdict(status=404, result="other")
_DUPLICATE = Verdict(status=200, result="duplicate")
_REUSED = Verdict(status=409, result="replayed")
_LOST = Verdict(status=503, result="full")
_PENDING = Verdict(status=503, result="pending")


class RelayReceiver:
    """Turns requests into letters.

    Args:
        context: clock, secrets and places.
        doors: the services of mail, by name.
        desk: judges mail.
        fleet: whom it may be about.
        outbox: takes the letters.
        replays: what has had its effect.
        count: told the service and the result of each request.
    """

    def __init__(
        self,
        context: Context,
        doors: Mapping[str, Door],
        desk: MailDesk,
        *,
        fleet: Fleet,
        outbox: Outbox,
        replays: RelayReplays,
        count: Callable[[str, str], None],
    ) -> None:
        self._context = context
        self._doors = doors
        self._desk = desk
        self._fleet = fleet
        self._outbox = outbox
        self._replays = replays
        self._count = count
        self._kept_bodies = KeptBodies(context.state_dir)

    async def receive(self, request: Received) -> Verdict:
        """Authenticate the raw bytes, judge them, and put away what follows."""
        name, _, more = request.path.partition("/")
        door = self._doors.get(name)
        if not request.path:
            service, verdict = NOTICES, await self._notice(request)
        elif door is None or more not in ("", "mime"):
            service, verdict = NOBODY, _NOT_FOUND
        else:
            service, verdict = name, await self._mail(request, door)
        self._count(service, verdict.result)
        return verdict

    # -- notices -------------------------------------------------------------------------------------------

    async def _notice(self, request: Received) -> Verdict:
        now = self._context.clock.now()
        try:
            webhook_id, is_clock_off = verified(request, self._context, now=now)
        except Rejected as rejected:
            return Verdict(status=401, result="replayed" if rejected.is_signed else "unsigned")
        signed = signed_at(request.headers)
        seen_id = f"{NOTICES}:{webhook_id}"
        known = self._replays.proven.novelty(seen_id, request.body, signed_at=signed, now=now)
        if known in ("duplicate", "reused"):
            return _DUPLICATE if known == "duplicate" else _REUSED
        try:
            message = parse(
                request.body,
                signed_at=signed,
                received_at=now,
                max_age_seconds=self._context.mail.max_age_seconds,
            )
        except Malformed as error:
            return Verdict(status=400, result="malformed", why=str(error))
        # What cannot be remembered is told all the same: what comes again only makes the same letters. What
        # may be a replay from before a restart may only flush.
        letters = of_notice(
            message,
            fleet=self._fleet,
            webhook_id=webhook_id,
            is_doubtful=is_clock_off or known == "unknown",
            now=now,
        )
        is_pending = self._depends_on_the_list(message, letters)
        if is_pending:
            letters = (*letters, *self._besides(letters, message=webhook_id, what="signed notice"))
        if not await self._outbox.post(letters) or known == "full":
            return _LOST
        if is_clock_off or known == "unknown" or is_pending:
            # Sent again, the clock set, the list new, or signed anew, it may count for what it is worth.
            result = "unproven" if is_clock_off else "replayed" if known == "unknown" else "pending"
            return Verdict(status=503, result=result)
        self._replays.proven.remember(seen_id, request.body, now=now)
        return await self._kept(Verdict(status=202, result="accepted"))

    def _depends_on_the_list(self, message: Message, letters: Iterable[Letter]) -> bool:
        """Tell whether a newer list of Droplets could make other letters of a notice."""
        if not message.name or self._fleet.is_current:
            return False
        if self._fleet.is_known and self._fleet.called(message.name):
            return False
        return message.droplet_id is None or any(one.evidence is Evidence.WEAK for one in letters)

    # -- mail ----------------------------------------------------------------------------------------------

    async def _mail(self, request: Received, door: Door) -> Verdict:
        try:
            opened = await door.open(request, self._context)
        except Refused as refused:
            return refused.verdict
        if isinstance(opened, Verdict):
            return opened
        return replace(await self._consider(door.service, opened), is_vouched=True)

    async def _consider(self, service: Service, delivery: Delivery) -> Verdict:
        now = self._context.clock.now()
        seen_id = f"{service.name}:{delivery.replay_id}"
        signed = delivery.signed_at or now
        memories = (self._replays.proven, self._replays.unproven)
        novelties = {one.novelty(seen_id, delivery.raw, signed_at=signed, now=now) for one in memories}
        if "duplicate" in novelties:
            return _DUPLICATE
        if "reused" in novelties:
            return Verdict(status=service.permanent_status, result="replayed")
        if "unknown" in novelties:
            delivery = replace(delivery, doubts=(*delivery.doubts, MEMORY_DOUBT))
        try:
            judgements = await self._desk.consider(delivery, self._fleet.droplets, now)
        except Malformed:
            await self._keep(delivery)
            return Verdict(status=service.permanent_status, result="malformed")
        if any(one.is_kept for one in judgements):
            await self._keep(delivery, is_proven=all(one.result != "unproven" for one in judgements))
        letters = self._letters(delivery, judgements)
        if not await self._outbox.post(letters):
            return _LOST
        verdict = self._answer(delivery, judgements, letters)
        if letters and verdict.status != _UNAVAILABLE:
            is_proven = any(letter.evidence is Evidence.STRONG for letter in letters)
            if is_proven and "full" in novelties:
                # They are told all the same; what comes again only makes the same letters.
                return _LOST
            memory = self._replays.proven if is_proven else self._replays.unproven
            memory.remember(seen_id, delivery.raw, now=now)
        return await self._kept(verdict)

    def _letters(self, delivery: Delivery, judgements: Sequence[Judgement]) -> tuple[Letter, ...]:
        now = self._context.clock.now()
        sole = self._fleet.sole if self._context.mail.single_droplet_account else None
        letters = of_judgements(judgements, now=now, sole=sole)
        if not self._is_unknown(judgements):
            return letters
        what = f"mail by {delivery.service}"
        return (*letters, *self._besides(letters, message=judgements[0].message_key, what=what))

    def _besides(self, letters: Sequence[Letter], *, message: str, what: str) -> tuple[Letter, ...]:
        """Return what is told beside letters that follow from a list which is old."""
        return besides(
            letters,
            {one.droplet_id: one.names | {one.hostname} - {""} for one in self._fleet.droplets},
            message=message,
            why=f"{what}, while the relay does not know which Droplets there are",
            now=self._context.clock.now(),
        )

    def _answer(
        self, delivery: Delivery, judgements: Sequence[Judgement], letters: Sequence[Letter]
    ) -> Verdict:
        """Return what a service is told of a mail whose letters are safe."""
        if self._is_unknown(judgements):
            return _PENDING
        passing = not PASSING_DOUBTS.isdisjoint(delivery.doubts)
        # Without proof a cancel makes no letter, but may have it the next time.
        is_said = bool(letters) or any(one.event != "none" for one in judgements)
        if is_said and (passing or any(one.is_temporary for one in judgements)):
            return Verdict(status=_UNAVAILABLE, result=_result(judgements))
        return Verdict(status=202 if letters else 200, result=_result(judgements))

    def _is_unknown(self, judgements: Sequence[Judgement]) -> bool:
        """Tell whether a mail may be about a Droplet that is not in our list yet, whatever it is called."""
        if any(one.result == "not_mine" for one in judgements):
            return not self._fleet.is_current
        return not self._fleet.is_known and any(
            one.event in ("reclaim", "correction")
            # Without proof a cancel is told nobody, whoever there is.
            or (one.event == "cancel" and one.evidence is Evidence.STRONG)
            for one in judgements
        )

    async def _keep(self, delivery: Delivery, *, is_proven: bool = False) -> None:
        await asyncio.to_thread(self._kept_bodies.keep, "relay", _KEPT_AS, delivery.raw, is_proven=is_proven)

    async def _kept(self, verdict: Verdict) -> Verdict:
        """Return `verdict`, or 503 when a restart would forget that it was given."""
        return verdict if await self._replays.keep() else Verdict(status=503, result=verdict.result)


def _result(judgements: Sequence[Judgement]) -> str:
    """Return the result of a mail: of what was done for some Droplet, if anything was."""
    acted = [one.result for one in judgements if one.event != "none"]
    return (acted or [one.result for one in judgements])[0]
