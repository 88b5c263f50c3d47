# SPDX-License-Identifier: Apache-2.0
"""The files between daemon and trainer: their names, their forms, and how they are written and read safely.

A documented, versioned protocol: a trainer may speak it without this package. Either side may crash, lie or
be of another version: what is half-written, hostile or left over is refused with `HandshakeError` and never
believed. It does not decide when anything is written, and knows no provider. Standard library only.
"""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

from spotwatch.errors import HandshakeError
from spotwatch.model import JSON, Do, from_rfc3339, to_rfc3339
from spotwatch.safe_files import list_newest_json_files, read_owned_file, read_small_file, write_atomically

VERSION = 1
FLAG = "checkpoint-now"
ORDER = "order.json"
DRAINING = "draining"
STATUS_DIR = "status"
NOTICES_DIR = "notices"

EXIT_DURABLE = 75
"""A trainer was stopped, and its save is durable."""
FRESH_SECONDS = 15.0
"""A status older than this belongs to a trainer that is gone or hangs."""
MAX_STATUS_FILES = 64
MAX_SEQ = 2**53 - 1
"""The largest number of an order: beyond it readers of JSON round, and two orders would look the same."""
MAX_HEARD_SEQ = 2**52
"""A file that mentions a higher number does not raise the next one, so that room is always left."""
MAX_SECONDS = 30 * 86400.0
_SLOWEST_STEPS_PER_SECOND = 1 / MAX_SECONDS
_FIRST_YEAR, _LAST_YEAR = 1970, 9000
"""What lies outside is no moment: a zero time (year 1, as Go writes one that was never set), or a whim."""
MAX_SIZE_BYTES = 2**60

_MISREADINGS = (ValueError, TypeError, OverflowError, RecursionError)
PHASES = frozenset(
    {"resuming", "waiting", "training", "seen", "staged", "uploading", "durable", "failed", "finished"}
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """What the trainer is told; `order.json` is its commit record, the flag's body repeats it."""

    boot_id: str
    seq: int
    do: Do
    id: str = ""
    deadline: datetime | None = None
    provider: str = ""
    why: str = ""

    def to_bytes(self) -> bytes:
        """Return the JSON of the file."""
        row: dict[str, JSON] = {
            "version": VERSION,
            "boot_id": self.boot_id,
            "seq": self.seq,
            "id": self.id,
            "do": self.do.value,
            "deadline": None if self.deadline is None else to_rfc3339(self.deadline),
            "provider": self.provider,
            "why": self.why,
        }
        return json.dumps(row).encode() + b"\n"

    @classmethod
    def from_bytes(cls, body: bytes) -> Order:
        """Return the order in `body`.

        Raises:
            HandshakeError: it is no order of a version that we know.
        """
        try:
            row = _object(body)
            deadline = row.get("deadline")
            seq = row.get("seq")
            if isinstance(seq, int | float) and seq > MAX_SEQ:
                # Clamped it would be the number of other orders too.
                raise HandshakeError("its seq is beyond 2**53 - 1, so that it is no order's number")
            return cls(
                boot_id=_text(row, "boot_id"),
                seq=_whole(row, "seq", MAX_SEQ),
                do=Do(_text(row, "do")),
                id=_text(row, "id"),
                deadline=None if deadline is None else from_rfc3339(deadline),
                provider=_text(row, "provider"),
                why=_text(row, "why"),
            )
        except _MISREADINGS as error:
            raise HandshakeError(f"not an order: {error}") from error


@dataclass(frozen=True, slots=True, kw_only=True)
class Saved:
    """The newest checkpoint that the trainer has re-read from its store."""

    seq: int = 0
    """The highest order contained in it; 0: none yet. Only this acknowledges."""
    step: int = 0
    at: datetime | None = None
    url: str = ""
    size_bytes: int = 0
    stall_seconds: float = 0.0
    save_seconds: float = 0.0
    manifest_crc: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Status:
    """What one trainer says about itself in `status/<run_id>.json`; numbers are clamped when read."""

    run_id: str
    pid: int
    at: datetime
    phase: str = "training"
    world_size: int = 1
    step: int = 0
    steps_per_second: float = 0.0
    step_at: datetime | None = None
    seq: int = 0
    """The order being worked on."""
    saved: Saved = field(default_factory=Saved)
    eta_seconds: float | None = None
    error: str = ""
    exit_code: int | None = None
    """What it leaves with, which a launcher above it may hide; None while it runs."""
    owner_uid: int = -1
    """Whose file it was; -1 when it was not read from one. Not part of the file."""

    def is_fresh(self, now: datetime) -> bool:
        """Tell whether the trainer wrote this within the last 15 s (and not in the future)."""
        return abs((now - self.at).total_seconds()) <= FRESH_SECONDS

    def to_bytes(self) -> bytes:
        """Return the JSON of the file."""
        saved = self.saved
        row: dict[str, JSON] = {
            "version": VERSION,
            "pid": self.pid,
            "run_id": self.run_id,
            "world_size": self.world_size,
            "step": self.step,
            "steps_per_second": self.steps_per_second,
            "step_at": _moment(self.step_at),
            "at": to_rfc3339(self.at),
            "seq": self.seq,
            "phase": self.phase,
            "saved": {
                "seq": saved.seq,
                "step": saved.step,
                "at": _moment(saved.at),
                "url": saved.url,
                "size_bytes": saved.size_bytes,
                "stall_seconds": saved.stall_seconds,
                "save_seconds": saved.save_seconds,
                "manifest_crc": saved.manifest_crc,
            },
            "eta_seconds": self.eta_seconds,
            "error": self.error,
            "exit_code": self.exit_code,
        }
        return json.dumps(row).encode() + b"\n"

    @classmethod
    def from_bytes(cls, body: bytes, *, owner_uid: int = -1) -> Status:
        """Return the status in `body`, its numbers clamped to what can be.

        Raises:
            HandshakeError: it is no status of a version that we know.
        """
        try:
            row = _object(body)
            saved = row.get("saved") or {}
            if not isinstance(saved, dict):
                raise HandshakeError("not a status: 'saved' is no object")
            phase = _text(row, "phase")
            if phase not in PHASES:
                raise HandshakeError(f"not a status: unknown phase {phase[:40]!r}")
            at = _read_moment(row.get("at"))
            if at is None:
                raise HandshakeError("not a status: 'at' is no moment of a trainer that lives")
            eta, code = row.get("eta_seconds"), row.get("exit_code")
            return cls(
                run_id=_text(row, "run_id"),
                pid=_whole(row, "pid", 2**22),
                at=at,
                phase=phase,
                world_size=max(1, _whole(row, "world_size", 2**20)),
                step=_whole(row, "step", MAX_SEQ),
                steps_per_second=_rate(row),
                step_at=_read_moment(row.get("step_at")),
                seq=_heard_seq(row),
                saved=Saved(
                    seq=_heard_seq(saved),
                    step=_whole(saved, "step", MAX_SEQ),
                    at=_read_moment(saved.get("at")),
                    url=_text(saved, "url"),
                    size_bytes=_whole(saved, "size_bytes", MAX_SIZE_BYTES),
                    stall_seconds=_real(saved, "stall_seconds", MAX_SECONDS),
                    save_seconds=_real(saved, "save_seconds", MAX_SECONDS),
                    manifest_crc=_text(saved, "manifest_crc"),
                ),
                eta_seconds=None if eta is None else _real(row, "eta_seconds", MAX_SECONDS),
                error=_text(row, "error"),
                exit_code=None if code is None else _whole(row, "exit_code", 255),
                owner_uid=owner_uid,
            )
        except _MISREADINGS as error:
            raise HandshakeError(f"not a status: {error}") from error


def read_order(runtime_dir: Path) -> Order | None:
    """Return the order in force, or None when there has been none.

    Raises:
        HandshakeError: there is a file, but it is no order; treat it as none and say so.
    """
    body = read_small_file(runtime_dir / ORDER)
    return None if body is None else Order.from_bytes(body)


def read_statuses(runtime_dir: Path, *, owners: Collection[int]) -> tuple[list[Status], list[str]]:
    """Return the statuses of trainers that may speak here, and a line for each file refused.

    Args:
        runtime_dir: where the daemon writes.
        owners: the user ids whose files count: the target's and the daemon's own.
    """
    statuses: list[Status] = []
    refused: list[str] = []
    files, _ = list_newest_json_files(runtime_dir / STATUS_DIR, MAX_STATUS_FILES, owners=owners)
    for path, _ in files:
        try:
            read = read_owned_file(path)
            if read is None:
                continue
            body, uid = read
            if uid not in owners:
                raise HandshakeError(f"owned by uid {uid}, who is neither the trainer's user nor ours")
            statuses.append(Status.from_bytes(body, owner_uid=uid))
        except HandshakeError as error:
            refused.append(f"{path.name[:80]}: {error}")
        except Exception as error:  # noqa: BLE001 - one file, whatever is in it, must not hide the others
            refused.append(f"{path.name[:80]}: {type(error).__name__}: {error}")
    return statuses, refused


def write_status(runtime_dir: Path, status: Status) -> None:
    """Publish what a trainer says of itself.

    Raises:
        HandshakeError: it could not be written.
    """
    name = "".join(c if c.isalnum() or c in "._-" else "_" for c in status.run_id)[:100] or "run"
    write_atomically(runtime_dir / STATUS_DIR / f"{name.lstrip('.') or 'run'}.json", status.to_bytes())


def _object(body: bytes) -> dict[str, Any]:
    try:
        row = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise HandshakeError(f"not JSON: {error}") from error
    if not isinstance(row, dict):
        raise HandshakeError(f"expected an object, found {type(row).__name__}")
    version = row.get("version")
    if version != VERSION:
        shown = version if isinstance(version, str | int | float | None) else type(version).__name__
        raise HandshakeError(f"version {str(shown)[:40]} is not {VERSION}; daemon and trainer need the same")
    return row


def _text(row: Mapping[str, Any], key: str) -> str:
    value = row.get(key)
    if value is None:
        return ""
    if not isinstance(value, str):
        raise HandshakeError(f"{key!r} is no text")
    return value[:1000]


def believable(seq: int) -> int:
    """Return `seq` as far as it may raise the number of the next order; 0 for one that nobody ever gave."""
    return seq if seq <= MAX_HEARD_SEQ else 0


def _heard_seq(row: Mapping[str, Any]) -> int:
    """Return the order that a trainer speaks of; 0 where no order can have that number."""
    seq = _whole(row, "seq", MAX_SEQ + 1)
    return seq if seq <= MAX_SEQ else 0


def _rate(row: Mapping[str, Any]) -> float:
    """Return the steps per second; 0, unknown, where one step would take over thirty days."""
    rate = _real(row, "steps_per_second", 1e6)
    return rate if rate >= _SLOWEST_STEPS_PER_SECOND else 0.0


def _whole(row: Mapping[str, Any], key: str, most: int) -> int:
    return int(_real(row, key, most))


def _real(row: Mapping[str, Any], key: str, most: float) -> float:
    value = row.get(key)
    if value is None:
        return 0
    # An integer of any length is a number, and compared as one: only a float can be NaN.
    is_number = isinstance(value, int) or (isinstance(value, float) and not math.isnan(value))
    if isinstance(value, bool) or not is_number:
        raise HandshakeError(f"{key!r} is no number")
    clamped: float = min(max(value, 0), most)
    return clamped


def _moment(moment: datetime | None) -> str | None:
    return None if moment is None else to_rfc3339(moment)


def _read_moment(text: object) -> datetime | None:
    if text is None:
        return None
    if not isinstance(text, str):
        raise HandshakeError(f"a {type(text).__name__} is no time")
    moment = from_rfc3339(text)
    return moment if _FIRST_YEAR <= moment.year <= _LAST_YEAR else None
