# SPDX-License-Identifier: Apache-2.0
"""What `LEASE` says: who has the run, since when, and how the ones before ended; its exact form.

It is refused unless every value is of the right kind and size. Nothing is fetched or waited for here.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from spotwatch.errors import CheckpointCorrupt
from spotwatch.model import JSON
from spotwatch.train.lease.history import ENDINGS, LOST, MOST_LIVES, History, Life
from spotwatch.train.lease.owner import MOST_PID, Owner

LEASE = "LEASE"
VERSION = 1
MOST_LEASE_BYTES = 64 * 1024
MOST_TTL_SECONDS = 3600.0
"""Longer than this nobody is to wait for a machine that is gone."""
MOST_GENERATION = 10**9 - 2
"""The highest that the name of a directory may carry."""
_LEAST_TTL_SECONDS = 0.001
_MOST_SECONDS = 1e10
_MOST_COUNT = 2**63 - 1
_MOST_TEXT = 255


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """One process's word that it has the run.

    Args:
        owner: the process.
        generation: one more than that of the holder before; ranks checkpoints.
        beat: another one at each renewal, so that a lease in use never looks the same for long.
        taken_at: RFC 3339, by the holder's clock; for people only.
        renewed_at: as above.
        ttl_seconds: unchanged for so long, it may be taken over; at most `MOST_TTL_SECONDS`.
        lived_seconds: between taking and renewing, by the holder's own clock.
        released: how the holder said that it ended; empty: it has not.
        history: of the holders before.
    """

    owner: Owner
    generation: int
    beat: int
    taken_at: str
    renewed_at: str
    ttl_seconds: float
    lived_seconds: float = 0.0
    released: str = ""
    history: History = field(default_factory=History)

    def lives(self, *, unsaid: str = LOST) -> History:
        """Return the history with this claim's own life at its end.

        Args:
            unsaid: how it ended when it was not released.
        """
        return self.history.followed_by(Life(self.lived_seconds, self.released or unsaid))

    def to_bytes(self) -> bytes:
        """Return the JSON of the file."""
        lives: list[JSON] = [
            {"seconds": round(life.seconds, 1), "ended": life.ended} for life in self.history.lives
        ]
        row: dict[str, JSON] = {
            "version": VERSION,
            "writer": self.owner.writer,
            "generation": self.generation,
            "beat": self.beat,
            "host": self.owner.host,
            "pid": self.owner.pid,
            "boot_id": self.owner.boot_id,
            "pid_namespace": self.owner.pid_namespace,
            "start_ticks": self.owner.start_ticks,
            "taken_at": self.taken_at,
            "renewed_at": self.renewed_at,
            "ttl_seconds": self.ttl_seconds,
            "lived_seconds": round(self.lived_seconds, 1),
            "released": self.released,
            "history": lives,
        }
        return json.dumps(row, allow_nan=False).encode() + b"\n"

    @classmethod
    def from_bytes(cls, body: bytes) -> Claim:
        """Return the claim in `body`.

        Raises:
            CheckpointCorrupt: it is no lease, one of another version, or a value in it is out of all bounds.
        """
        row = _object(body)
        if row is None:
            raise CheckpointCorrupt(f"{LEASE} is not a JSON object")
        try:
            if row["version"] != VERSION:
                raise ValueError(f"version {str(row['version'])[:40]}, not {VERSION}")
            return cls(
                owner=Owner(
                    writer=_text(row, "writer"),
                    host=_text(row, "host"),
                    pid=_whole(row, "pid", 1, MOST_PID),
                    boot_id=_text(row, "boot_id"),
                    pid_namespace=_whole(row, "pid_namespace", 0, _MOST_COUNT),
                    start_ticks=_whole(row, "start_ticks", 0, _MOST_COUNT),
                ),
                generation=_whole(row, "generation", 1, MOST_GENERATION),
                beat=_whole(row, "beat", 0, _MOST_COUNT),
                taken_at=_text(row, "taken_at"),
                renewed_at=_text(row, "renewed_at"),
                ttl_seconds=_seconds(row, "ttl_seconds", _LEAST_TTL_SECONDS, MOST_TTL_SECONDS),
                lived_seconds=_seconds(row, "lived_seconds", 0.0, _MOST_SECONDS),
                released=_one_of(row, "released", ("", *ENDINGS)),
                history=_history(row["history"]),
            )
        except (KeyError, ValueError, TypeError) as error:
            raise CheckpointCorrupt(f"{LEASE} cannot be used: {error!r}") from error


def generation_in(body: bytes) -> int:
    """Return the generation in a lease that is otherwise refused; 0 when there is none that can be."""
    row = _object(body)
    if row is None:
        return 0
    try:
        return _whole(row, "generation", 0, MOST_GENERATION)
    except (KeyError, ValueError):
        return 0


def _object(body: bytes) -> dict[str, Any] | None:
    try:
        row = json.loads(body)
    except (ValueError, RecursionError):
        return None
    return row if isinstance(row, dict) else None


def _history(rows: object) -> History:
    if not isinstance(rows, list) or len(rows) > MOST_LIVES:
        raise ValueError(f"history is no list of at most {MOST_LIVES}")
    return History(
        tuple(
            Life(_seconds(row, "seconds", 0.0, _MOST_SECONDS), _one_of(row, "ended", (*ENDINGS, LOST)))
            for row in rows
        )
    )


def _text(row: Mapping[str, Any], key: str) -> str:
    value = row[key]
    # It is shown to people: nothing in it may move their cursor.
    if not isinstance(value, str) or len(value) > _MOST_TEXT or not value.isprintable():
        raise ValueError(f"{key} is no short line of text")
    return value


def _one_of(row: Mapping[str, Any], key: str, words: tuple[str, ...]) -> str:
    value = row[key]
    if not isinstance(value, str) or value not in words:
        raise ValueError(f"{key} is none of {words}")
    return value


def _whole(row: Mapping[str, Any], key: str, least: int, most: int) -> int:
    value = row[key]
    if type(value) is not int or not least <= value <= most:
        raise ValueError(f"{key} is no whole number from {least} to {most}")
    return value


def _seconds(row: Mapping[str, Any], key: str, least: float, most: float) -> float:
    value = row[key]
    # NaN compares false with everything, and is refused by that.
    if type(value) not in (int, float) or not least <= value <= most:
        raise ValueError(f"{key} is no number of seconds from {least:g} to {most:g}")
    return float(value)
