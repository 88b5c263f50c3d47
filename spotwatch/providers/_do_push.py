# SPDX-License-Identifier: Apache-2.0
"""`POST /webhook/digitalocean`: a signed notice by somebody who reads the mail elsewhere.

It does not read mail, and does not ask who this Droplet is.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from functools import partial

from spotwatch.errors import Malformed
from spotwatch.mail.mailbox import message_of
from spotwatch.model import Evidence
from spotwatch.providers import Context
from spotwatch.providers._do_identity import Known
from spotwatch.providers._do_memory import Memory
from spotwatch.providers._do_message import Message, bearing, parse
from spotwatch.providers._do_slot import Claim
from spotwatch.received import Received, Verdict
from spotwatch.webhooks import Rejected, signed_at, verify

UNSYNCED_SECONDS = 7200.0
"""How far a signed time may be from a clock that is not set yet; what it says may then only flush."""

_MAX_PENDING = 64
_KNOWN = {
    "duplicate": Verdict(status=200, result="duplicate"),
    "reused": Verdict(status=409, result="replayed"),
}
# Sent again once the clock is set, signed anew, or when there is room, it may count for what it is worth.
_DOUBTS = {
    "clock": Verdict(status=503, result="unproven"),
    "unknown": Verdict(status=503, result="replayed"),
    "full": Verdict(status=503, result="full"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Push:
    """A verified message, by the id that its signature is good for once."""

    webhook_id: str
    message: Message
    body: bytes
    doubt: str
    """Why it may be a replay, or become one, by `_DOUBTS`; empty: it is none.

    `clock`: its time fits only a clock that is known to be wrong, ours.
    """


class Pushes:
    """Takes signed notices.

    Args:
        context: secrets, clock and tolerance.
        memory: what they leave behind.
        known: returns who this Droplet is.
        wake: called when there is something new.
    """

    def __init__(
        self, context: Context, memory: Memory, *, known: Callable[[], Known], wake: Callable[[], None]
    ) -> None:
        self._context = context
        self._memory = memory
        self._known = known
        self._wake = wake
        self._pending: dict[str, _Push] = {}

    async def receive(self, request: Received) -> Verdict:
        """Verify the raw bytes, then read and keep them.

        503 means: heard, perhaps acted on already, but not yet kept for good; send it again.
        """
        now = self._context.clock.now()
        try:
            webhook_id, is_clock_off = verified(request, self._context, now=now)
        except Rejected as rejected:
            return Verdict(status=401, result="replayed" if rejected.is_signed else "unsigned")
        signed = signed_at(request.headers)
        known = self._memory.proven.novelty(webhook_id, request.body, signed_at=signed, now=now)
        if known in _KNOWN:
            return await self._memory.kept(_KNOWN[known])
        try:
            message = parse(
                request.body,
                signed_at=signed,
                received_at=now,
                max_age_seconds=self._context.mail.max_age_seconds,
            )
        except Malformed as error:
            return Verdict(status=400, result="malformed", why=str(error))
        doubt = "clock" if is_clock_off else known if known in _DOUBTS else ""
        push = _Push(webhook_id=webhook_id, message=message, body=request.body, doubt=doubt)
        return await self._memory.kept(self._judge(push))

    def settle(self) -> None:
        """Judge what had to wait until it was known who this Droplet is."""
        waiting, self._pending = self._pending, {}
        for push in waiting.values():
            self._judge(push)

    def _judge(self, push: _Push) -> Verdict:
        """Take a verified message that has not been acted on, put it off, or leave it."""
        bears = bearing(push.message, self._known())
        if bears == "not_mine":
            return Verdict(status=200, result="not_mine")
        if bears == "unknown":
            return self._put_off(push)
        message = push.message
        if message.event == "cancel" and push.doubt in ("unknown", "full"):
            return _DOUBTS[push.doubt]
        outcome = self._memory.inbox.take(
            Claim(
                event=message.event,
                evidence=Evidence.WEAK if push.doubt else Evidence(bears),
                at=message.at,
                signed_at=message.signed_at,
                received_at=message.received_at,
                detail=f"signed notice, naming {message.subject}",
                message=message_of(push.webhook_id),
            )
        )
        self._wake()
        if push.doubt:
            return _DOUBTS[push.doubt]
        if outcome == "refused":
            return Verdict(status=409, result="refused")
        self._memory.proven.remember(push.webhook_id, push.body, now=self._context.clock.now())
        return Verdict(status=202 if outcome == "accepted" else 200, result=outcome)

    def _put_off(self, push: _Push) -> Verdict:
        """Keep a message until it is known who this Droplet is."""
        if len(self._pending) >= _MAX_PENDING and push.webhook_id not in self._pending:
            return Verdict(status=503, result="full")
        self._pending.setdefault(push.webhook_id, push)
        return Verdict(status=503, result="pending")


def verified(request: Received, context: Context, *, now: datetime) -> tuple[str, bool]:
    """Return the id of a signed request, and whether its time fits only a clock that is wrong.

    Raises:
        Rejected: it is not signed, or too old or too new.
    """
    check = partial(verify, request.headers, request.body, context.webhook_secrets, now=now)
    try:
        return check(tolerance_seconds=context.webhook_tolerance_seconds), False
    except Rejected as rejected:
        if not rejected.is_signed or context.is_clock_synced() is not False:
            raise
    return check(tolerance_seconds=UNSYNCED_SECONDS), True
