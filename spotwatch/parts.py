# SPDX-License-Identifier: Apache-2.0
"""What an order is planned and delivered with, handed round as one.

It makes none of it, and does nothing.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field

from spotwatch.actions.handshake import HandshakeAction
from spotwatch.clock import Clock
from spotwatch.config import Release
from spotwatch.journal import Journal
from spotwatch.ledger import Ledger
from spotwatch.policy import Policy
from spotwatch.providers import Confirmer
from spotwatch.targets import Proc, Target, has_pending, is_alive
from spotwatch.telling import Tellers
from spotwatch.trainers import Trainers


async def _nothing() -> None:
    """Do nothing."""


@dataclass(slots=True, kw_only=True)
class Parts:
    """What an order is delivered with."""

    ledger: Ledger
    policy: Policy
    clock: Clock
    journal: Journal
    handshake: HandshakeAction
    trainers: Trainers
    tellers: Tellers
    targets: Sequence[Target] = ()
    confirmers: Mapping[str, Confirmer] = field(default_factory=dict)
    release: Release = field(default_factory=Release)
    is_alive: Callable[[Proc], bool] = is_alive
    has_pending: Callable[[Proc, int], bool] = has_pending
    before_order: Callable[[], Awaitable[None]] = _nothing
    """Brief: brings up to date what an order needs to know of the trainer's user."""
