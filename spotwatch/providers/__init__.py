# SPDX-License-Identifier: Apache-2.0
"""What a source of notices must offer, and how one is found by its name.

A provider answers "which notices are in force now?". It does not know policy, ledger, metrics or other
providers; the frame polls, counts, logs and compares.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn, Protocol, Self, runtime_checkable

from spotwatch.clock import Clock
from spotwatch.config import Mail
from spotwatch.errors import ConfigError
from spotwatch.model import Answer, Notice
from spotwatch.received import Received as Received
from spotwatch.received import Verdict as Verdict

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

ENTRY_POINT_GROUP = "spotwatch.providers"


def _refuse_secret(name: str) -> NoReturn:
    raise ConfigError(f"secret file {name} is not read here")


def _say_nothing_of_clocks() -> None:
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """What a provider may know of the daemon it runs in."""

    clock: Clock
    runtime_dir: Path
    state_dir: Path | None = None
    """Where a push source keeps what must outlive a restart; None: nowhere, memory only."""
    webhook_secrets: tuple[bytes, ...] = ()
    """Standard Webhooks secrets (decoded), the newest first; empty: no webhook."""
    webhook_tolerance_seconds: float = 300.0
    """How far the time of a signed request may be from ours (Standard Webhooks 1.0.0: five minutes)."""
    trust_relay: bool = False
    """A relay's signature makes a mail strong that has no proof of its own."""
    mail: Mail = field(default_factory=Mail)
    inbound: Mapping[str, Any] = field(default_factory=dict)
    """The config of each inbound mail service that is set up, by name."""
    read_secret: Callable[[str], str] = _refuse_secret
    """Returns the text of a secret file that a section names; raises ConfigError."""
    environ: Mapping[str, str] = field(default_factory=dict)
    """Where the credentials of object stores are found."""
    is_clock_synced: Callable[[], bool | None] = _say_nothing_of_clocks
    """Whether this machine's clock is known to be right; None: nobody says."""
    policy_times: Mapping[str, str] = field(default_factory=dict)
    """Settings outside the provider's own section that it turns into notices (`ends_at`)."""


class Provider(Protocol):
    """One source of notices. Used as an async context manager: sockets open on entry, all closed on exit."""

    name: ClassVar[str]
    config_class: ClassVar[type]
    absence_withdraws: ClassVar[bool]
    """False for push sources, whose notices end only by an authenticated cancel or by time."""

    def __init__(self, config: Any, context: Context) -> None:
        """Store the arguments; open nothing."""

    async def __aenter__(self) -> Self:
        """Open what polling needs."""

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close everything: no task and no socket is left."""

    @property
    def signals(self) -> tuple[str, ...]:
        """Return the names of the signals watched, for `check`, `status` and the start log."""

    @property
    def interval_seconds(self) -> float:
        """Return the time between polls, or a long poll's longest wait, in seconds."""

    async def detect(self) -> bool:
        """Tell within 2 s whether this machine is on this cloud: DMI first, then at most one request.

        Never raises `ProviderError`: no answer means no.
        """

    async def notices(self) -> Answer:
        """Return all notices in force now; always quick (its own time limits), never raises `ProviderError`.

        What failed is in `Answer.failed`.
        """

    async def wait(self) -> None:
        """Return when it is worth asking again: an interval passed, a long poll answered, mail came."""


@runtime_checkable
class Identified(Protocol):
    """A provider that can name the machine."""

    async def identity(self) -> str:
        """Return the cloud's stable id of this machine.

        Raises:
            ProviderError: the cloud did not say.
        """


@runtime_checkable
class Windowed(Protocol):
    """A provider whose cloud documents how long before the end its notice comes."""

    @property
    def window_seconds(self) -> float:
        """Return the shortest notice that the cloud documents for a reclaim, in seconds."""


@runtime_checkable
class Measuring(Protocol):
    """A provider that measures something about the way its notices come."""

    @property
    def measures(self) -> Mapping[str, float]:
        """Return what is known after a poll, by the name of its metric without `spotwatch_`."""


@runtime_checkable
class Receiver(Protocol):
    """A push source: it puts what arrives into an inbox and wakes its own `wait`."""

    async def receive(self, request: Received) -> Verdict:
        """Verify, then keep; never waits for an action."""


@runtime_checkable
class Confirmer(Protocol):
    """A cloud that can be told to go ahead early."""

    async def confirm(self, notice: Notice) -> None:
        """Approve the event, so that the machine goes before its deadline.

        Raises:
            ProviderError: the cloud did not accept it.
        """


def names() -> tuple[str, ...]:
    """Return the names of all providers, ours and those installed by others."""
    own = {m.name for m in pkgutil.iter_modules(__path__) if not m.name.startswith("_")}
    others = {point.name for point in _installed()}
    return tuple(sorted(own | others))


def load(name: str) -> type[Provider]:
    """Return the class of the provider called `name`; only that module is imported.

    Raises:
        ConfigError: there is none of that name.
    """
    own = {m.name for m in pkgutil.iter_modules(__path__) if not m.name.startswith("_")}
    if name in own:
        module = importlib.import_module(f"{__name__}.{name}")
        provider: type[Provider] = module.PROVIDER
        return provider
    for point in _installed():
        if point.name == name:
            found: type[Provider] = point.load()
            return found
    raise ConfigError(f"unknown provider {name!r}; have {', '.join(names())}")


def _installed() -> Iterable[EntryPoint]:
    """Return the providers that other distributions bring."""
    # Imported late: half a MiB that a daemon with a cloud of ours by name never needs.
    from importlib.metadata import entry_points  # noqa: PLC0415

    return entry_points(group=ENTRY_POINT_GROUP)
