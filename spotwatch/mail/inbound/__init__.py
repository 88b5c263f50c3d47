# SPDX-License-Identifier: Apache-2.0
"""Services that turn mail into requests, and what one of ours must offer to hear a service.

A service is a module here: its docstring says what the service posts and signs (source, date), `Config` what
a user sets, and `SERVICE` is the class. Config section (`[inbound.<name>]`), path
(`/webhook/digitalocean/<name>`) and page follow from the name. What only a service knows stays in its module;
limits, replays, DKIM and meaning are others' business.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable
from typing import Any, ClassVar, Protocol, Self

from spotwatch.clock import Clock
from spotwatch.errors import ConfigError, SpotwatchError
from spotwatch.mail.model import Delivery
from spotwatch.received import Received, Verdict


class Refused(SpotwatchError):
    """A request that hands over no mail that one may look at.

    Args:
        verdict: what the service is answered, in the codes that it understands.
        why: for the log; the peer never sees it.
    """

    def __init__(self, verdict: Verdict, why: str) -> None:
        super().__init__(why)
        self.verdict = verdict
        self.why = why

    @classmethod
    def unsigned(cls, why: str, **headers: str) -> Self:
        """Return the refusal of what is not proven to come from the service."""
        return cls(Verdict(status=401, result="unsigned", headers=headers), why)

    @classmethod
    def replayed(cls, why: str) -> Self:
        """Return the refusal of what was rightly signed at another time."""
        return cls(Verdict(status=401, result="replayed"), why)

    @classmethod
    def malformed(cls, why: str, status: int = 400) -> Self:
        """Return the refusal of what no repetition would make better."""
        return cls(Verdict(status=status, result="malformed"), why)


class Service(Protocol):
    """One service. Made once a daemon; `open` may run many times, one at a time."""

    name: ClassVar[str]
    config_class: ClassVar[type]
    """Its `__post_init__` refuses what cannot work, such as no secret at all, with a ValueError."""
    permanent_status: ClassVar[int]
    """What makes this service give up (HTTP): for a mail that is authentic and of no use."""

    def __init__(
        self, config: Any, *, read_secret: Callable[[str], str], clock: Clock, tolerance_seconds: float
    ) -> None:
        """Read the secrets.

        Args:
            config: of `config_class`.
            read_secret: returns the text of a secret file by its name in the configuration.
            clock: what time it is.
            tolerance_seconds: how far a signed time may be from ours.

        Raises:
            ConfigError: a secret is missing, empty or of another form.
        """

    async def open(self, request: Received) -> Delivery | Verdict:
        """Authenticate the raw bytes, then take the mail out of them.

        Returns:
            The mail; or the answer to a request that is authentic, dealt with, and brings none.

        Raises:
            Refused: not authentic, too old, or without a mail.
        """


def names() -> tuple[str, ...]:
    """Return the names of all services."""
    return tuple(sorted(m.name for m in pkgutil.iter_modules(__path__) if not m.name.startswith("_")))


def load(name: str) -> type[Service]:
    """Return the class of the service called `name`; only that module is imported.

    Raises:
        ConfigError: there is none of that name.
    """
    if name not in names():
        raise ConfigError(f"unknown inbound mail service {name!r}; have {', '.join(names())}")
    service: type[Service] = importlib.import_module(f"{__name__}.{name}").SERVICE
    return service
