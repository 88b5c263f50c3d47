# SPDX-License-Identifier: Apache-2.0
"""Every fault by name, and which of them are in force for a page.

Some spoil the answer on its way (`SPOILT`), some are told in a good answer (`TOLD`). How a spoilt answer
looks on the wire is not known here.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from spotwatch.errors import ConfigError

SPOILT: Mapping[str, str] = MappingProxyType(
    {
        "hang": "no answer at all; with seconds: a late one",
        "refuse": "the listening socket is closed; for one signal or a count: closed without an answer",
        "reset": "the connection is reset (RST)",
        "401": "unauthorised; on AWS every token has expired",
        "403": "forbidden",
        "404": "not found",
        "429": "too many requests, with Retry-After",
        "500": "server error",
        "503": "unavailable",
        "slow-body": "one byte a second",
        "truncated": "the connection ends in the middle of the body",
        "empty": "200 with no body",
        "html": "200 with a captive portal's page",
        "10-mb": "200 with 10 MB of noise",
        "wrong-type": "200 with JSON of another type",
        "redirect": "302 to a page that must never be asked for",
    }
)
TOLD: Mapping[str, str] = MappingProxyType(
    {
        "sliding-time": "the deadline moves on with every answer",
        "past-time": "the deadline is an hour before the announcement",
        "withdrawal": "notices are not shown",
        "flicker": "notices are shown in every other answer, beginning with the first",
        "neighbour": "notices concern another machine",
        "duplicate": "notices are told twice",
        "clock-skew": "the Date header and all times are off by seconds (3600)",
    }
)
FAULTS: Mapping[str, str] = MappingProxyType({**SPOILT, **TOLD})
NEEDS_ANSWER = frozenset({"slow-body", "truncated"})
"""Spoilt faults that work on the true answer."""
SKEW_SECONDS = 3600.0
RETRY_AFTER_SECONDS = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Mood:
    """How a good answer tells its notices."""

    hidden: bool = False
    sliding: bool = False
    past: bool = False
    neighbour: bool = False
    duplicate: bool = False
    skew_seconds: float = 0.0


@dataclass(slots=True, kw_only=True, eq=False)
class Fault:
    """One fault in force."""

    name: str
    page: str | None = None
    """None: every page."""
    left: int | None = None
    """Answers still to be spoilt; None: until healed."""
    seconds: float | None = None
    """hang: the delay; clock-skew: the offset; 429 and 503: Retry-After."""
    body: bytes | None = None
    """What to say instead, for `wrong-type` and `html`."""
    used: dict[str, int] = field(default_factory=dict)
    """Answers so far, by page."""


class Faults:
    """The faults in force of one emulator."""

    def __init__(self) -> None:
        self._faults: list[Fault] = []

    def add(self, fault: Fault) -> None:
        """Put `fault` in force.

        Raises:
            ConfigError: the name is unknown, or the count is not positive.
        """
        if fault.name not in FAULTS:
            raise ConfigError(f"unknown fault {fault.name!r}; have {', '.join(FAULTS)}")
        if fault.left is not None and fault.left < 1:
            raise ConfigError(
                f"fault {fault.name}: times is {fault.left}; give 1 or more, or None until healed"
            )
        self._faults.append(fault)

    def clear(self, name: str | None = None) -> None:
        """End every fault, or all of one name."""
        self._faults = [] if name is None else [f for f in self._faults if f.name != name]

    @property
    def refuses(self) -> bool:
        """Tell whether nothing may listen at all."""
        return any(f.name == "refuse" and f.page is None and f.left is None for f in self._faults)

    def active(self, page: str, *, tells: bool = True) -> list[Fault]:
        """Return what is in force for `page`, the newest last.

        Args:
            page: as the cloud names it.
            tells: it shows notices; else only clock-skew counts of the faults that are told.
        """
        return [
            f
            for f in self._faults
            if f.page in (None, page) and (tells or f.name in SPOILT or f.name == "clock-skew")
        ]

    def told(self, page: str) -> list[Fault]:
        """Return those that a message can tell, since nothing spoils one on its way."""
        return [f for f in self.active(page) if f.name in TOLD]

    def spend(self, faults: Iterable[Fault], page: str) -> None:
        """Count one answer of `page` against each of `faults`."""
        for fault in faults:
            fault.used[page] = fault.used.get(page, 0) + 1
            if fault.left is not None:
                fault.left -= 1
        self._faults = [f for f in self._faults if f.left != 0]


def canonical(name: str) -> str:
    """Return the name of a fault as it is listed: `10 MB` is `10-mb`."""
    return name.strip().lower().replace("_", "-").replace(" ", "-")


def spoiler(faults: Iterable[Fault]) -> Fault | None:
    """Return the newest fault that spoils the answer on its way."""
    found = [f for f in faults if f.name in SPOILT]
    return found[-1] if found else None


def mood(faults: Iterable[Fault], page: str) -> Mood:
    """Return how the next good answer of `page` tells its notices."""
    told = {f.name: f for f in faults if f.name in TOLD}
    flicker = told.get("flicker")
    skew = told.get("clock-skew")
    return Mood(
        hidden="withdrawal" in told or (flicker is not None and flicker.used.get(page, 0) % 2 == 1),
        sliding="sliding-time" in told,
        past="past-time" in told,
        neighbour="neighbour" in told,
        duplicate="duplicate" in told,
        skew_seconds=0.0 if skew is None else (SKEW_SECONDS if skew.seconds is None else skew.seconds),
    )
