# SPDX-License-Identifier: Apache-2.0
"""Orders and statuses: what is written is read back, what nobody should have written is refused."""

from __future__ import annotations

import json
import os
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from spotwatch import handshake
from spotwatch.errors import HandshakeError
from spotwatch.handshake import Order, Saved, Status
from spotwatch.model import Do
from spotwatch.testing import EPOCH

ORDER = Order(boot_id="b", seq=7, do=Do.STOP, id="i", deadline=EPOCH, provider="aws", why="spot")
STATUS = Status(
    run_id="sweep-01",
    pid=17,
    at=EPOCH,
    phase="uploading",
    step=12,
    steps_per_second=3.5,
    step_at=EPOCH,
    seq=7,
    saved=Saved(seq=6, step=10, at=EPOCH, url="s3://b/x", size_bytes=5, stall_seconds=0.1, save_seconds=2.0),
    eta_seconds=3.0,
)


def changed(body: bytes, **values: Any) -> bytes:
    """Return the JSON in `body` with other values; a dotted name reaches into an object."""
    row = json.loads(body)
    for name, value in values.items():
        place = row
        *parents, last = name.split("__")
        for parent in parents:
            place = place[parent]
        place[last] = value
    return json.dumps(row).encode()


def test_an_order_is_read_back() -> None:
    """Every field, to the millisecond."""
    assert Order.from_bytes(ORDER.to_bytes()) == ORDER


def test_a_status_is_read_back() -> None:
    """Every field, the nested ones too."""
    assert Status.from_bytes(STATUS.to_bytes()) == STATUS


@pytest.mark.parametrize(
    "body",
    [
        b"", b"{", b"null", b"[]", b"7", b"\xff\xfe", b"[" * 50_000, b'{"version": 2}', b'{"version": "1"}',
        b'{"version": 1}', changed(ORDER.to_bytes(), do="dance"), changed(ORDER.to_bytes(), do=None),
        changed(ORDER.to_bytes(), seq="7"), changed(ORDER.to_bytes(), seq=True),
        changed(ORDER.to_bytes(), seq=float("nan")), changed(ORDER.to_bytes(), deadline="soon"),
        changed(ORDER.to_bytes(), deadline="2026-11-29T12:00:00"), changed(ORDER.to_bytes(), deadline=5),
        changed(ORDER.to_bytes(), boot_id=5), b'{"version": 1, "seq": ' + b"9" * 6000 + b"}",
    ],
)  # fmt: skip
def test_what_is_no_order(body: bytes) -> None:
    """Half-written, of another version, or of the wrong types: refused in one way."""
    with pytest.raises(HandshakeError):
        Order.from_bytes(body)


@pytest.mark.parametrize(
    "name", ["seq", "step", "pid", "steps_per_second", "saved__seq", "saved__size_bytes"]
)
@pytest.mark.parametrize("value", [10**400, 10**4000, 1e308, float("inf"), -5, -(10**400)])
def test_a_number_that_cannot_be_is_clamped(name: str, value: float) -> None:
    """However long it is: neither believed nor fatal."""
    status = Status.from_bytes(changed(STATUS.to_bytes(), **{name: value}))
    place: Any = status.saved if name.startswith("saved__") else status
    read = getattr(place, name.removeprefix("saved__"))
    assert 0 <= read <= handshake.MAX_SIZE_BYTES


@pytest.mark.parametrize(
    "values",
    [
        {"phase": "dancing"}, {"at": None}, {"at": "yesterday"}, {"saved": [1]}, {"step": "12"}, {"step": []},
        {"step_at": 7}, {"saved__at": 7}, {"run_id": 7}, {"error": {}}, {"eta_seconds": "soon"},
        {"steps_per_second": float("nan")},
    ],
)  # fmt: skip
def test_what_is_no_status(values: dict[str, Any]) -> None:
    """Wrong types are refused."""
    with pytest.raises(HandshakeError):
        Status.from_bytes(changed(STATUS.to_bytes(), **values))


def test_an_order_with_a_number_of_any_length() -> None:
    """It is clamped, so that a next number still exists above it."""
    order = Order.from_bytes(changed(ORDER.to_bytes(), seq=10**4000))
    assert order.seq == handshake.MAX_SEQ


def test_fresh_is_fifteen_seconds_either_way() -> None:
    """An old status counts no more than one from the future."""
    for seconds, is_fresh in ((0, True), (15, True), (16, False), (-15, True), (-16, False)):
        assert STATUS.is_fresh(EPOCH + timedelta(seconds=seconds)) is is_fresh


def test_statuses_of_others_do_not_count(tmp_path: Path) -> None:
    """Only files of the users named are read; each other file is a line that says why."""
    (tmp_path / handshake.STATUS_DIR).mkdir()
    handshake.write_status(tmp_path, STATUS)
    statuses, refused = handshake.read_statuses(tmp_path, owners={os.geteuid()})
    assert [(s.run_id, s.owner_uid) for s in statuses] == [("sweep-01", os.geteuid())]
    assert refused == []
    statuses, refused = handshake.read_statuses(tmp_path, owners={os.geteuid() + 1})
    assert statuses == []
    assert len(refused) == 1


@pytest.mark.parametrize("run_id", ["../../etc/passwd", "a/b", ".hidden", "", "ü" * 300, "a\nb", "-x"])
def test_a_run_id_names_a_file_in_its_folder(tmp_path: Path, run_id: str) -> None:
    """Whatever a run is called, its status lies in `status/` and is found there."""
    folder = tmp_path / handshake.STATUS_DIR
    folder.mkdir()
    handshake.write_status(tmp_path, Status(run_id=run_id, pid=1, at=EPOCH))
    assert len(list(folder.glob("*.json"))) == 1
    assert len(list(tmp_path.rglob("*.json"))) == 1
