# SPDX-License-Identifier: Apache-2.0
"""Orders and statuses: what is written is read back, what nobody should have written is refused."""

from __future__ import annotations

import json
import math
import os
from datetime import UTC, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

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


@pytest.mark.parametrize("seq", [handshake.MAX_SEQ + 1, 1.8e18, 10**4000, float("inf")])
def test_an_order_with_a_number_that_no_reader_keeps(seq: float) -> None:
    """Refused: clamped, it would be the number of every later order."""
    with pytest.raises(HandshakeError, match="seq"):
        Order.from_bytes(changed(ORDER.to_bytes(), seq=seq))
    assert Order.from_bytes(changed(ORDER.to_bytes(), seq=handshake.MAX_SEQ)).seq == handshake.MAX_SEQ


@pytest.mark.parametrize("name", ["seq", "saved__seq"])
def test_a_status_with_a_number_that_no_order_has_speaks_of_none(name: str) -> None:
    """A time in nanoseconds, by mistake: it answers nothing, and the rest of the file counts."""
    status = Status.from_bytes(changed(STATUS.to_bytes(), **{name: 1_764_484_000_000_000_000}))
    assert (status.saved.seq if name == "saved__seq" else status.seq) == 0
    assert status.step == STATUS.step


@pytest.mark.parametrize("rate", [5e-324, 1e-308, 1e-9, -1.0])
def test_a_pace_at_which_nothing_ever_ends_is_unknown(rate: float) -> None:
    """No division by it makes work at risk infinite."""
    assert Status.from_bytes(changed(STATUS.to_bytes(), steps_per_second=rate)).steps_per_second == 0


_BEYOND = ("0001-01-01T00:00:00+23:59", "9999-12-31T23:59:59-23:59")
_ZERO = ("0001-01-01T00:00:00Z", "9999-12-31T23:59:59Z", "1969-12-31T23:59:59Z")


@pytest.mark.parametrize("moment", _BEYOND)
@pytest.mark.parametrize("name", ["at", "step_at", "saved__at"])
def test_a_moment_beyond_the_calendar_is_refused(name: str, moment: str) -> None:
    """In UTC there is no such year: the one documented error, in a status and in an order."""
    with pytest.raises(HandshakeError, match="beyond the calendar"):
        Status.from_bytes(changed(STATUS.to_bytes(), **{name: moment}))
    with pytest.raises(HandshakeError, match="beyond the calendar"):
        Order.from_bytes(changed(ORDER.to_bytes(), deadline=moment))


@pytest.mark.parametrize("moment", _ZERO)
def test_a_zero_time_is_no_moment(moment: str) -> None:
    """Of a save it says that there was none; a status without a moment of its own is refused."""
    status = Status.from_bytes(changed(STATUS.to_bytes(), step_at=moment, saved__at=moment))
    assert (status.step_at, status.saved.at) == (None, None)
    with pytest.raises(HandshakeError, match="'at' is no moment"):
        Status.from_bytes(changed(STATUS.to_bytes(), at=moment))


_VALUES = st.recursive(
    st.one_of(
        st.none(),
        st.booleans(),
        st.integers(),
        st.floats(),
        st.text(),
        st.sampled_from(
            [*_BEYOND, *_ZERO, "2026-11-29", 10**400, 2**53, 5e-324, "training", "stop", "\ud800"]
        ),
        st.datetimes(timezones=st.sampled_from([UTC, timezone(timedelta(hours=23, minutes=59))])).map(str),
    ),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=5,
)
_KEYS = (*json.loads(STATUS.to_bytes()), *json.loads(ORDER.to_bytes()))
_SAVED_KEYS = tuple(f"saved__{key}" for key in json.loads(STATUS.to_bytes())["saved"])


@given(
    values=st.dictionaries(st.sampled_from(_KEYS), _VALUES, max_size=4),
    saved=st.dictionaries(st.sampled_from(_SAVED_KEYS), _VALUES, max_size=3),
    noise=st.binary(max_size=40),
)
def test_whatever_is_in_a_file_there_is_one_error(
    values: dict[str, Any], saved: dict[str, Any], noise: bytes
) -> None:
    """What is read can be written and reckoned with; what cannot be read raises `HandshakeError` alone."""
    bodies = [changed(changed(STATUS.to_bytes(), **saved), **values), changed(ORDER.to_bytes(), **values)]
    for body in [*bodies, noise, bodies[0][: len(noise) * 9], noise + bodies[1]]:
        for kind in (Status, Order):
            try:
                read = kind.from_bytes(body)
            except HandshakeError:
                continue
            assert read.to_bytes()
            if isinstance(read, Status):
                assert read.is_fresh(EPOCH) in (True, False)
                assert read.steps_per_second == 0 or math.isfinite(read.step / read.steps_per_second)


def test_one_file_that_nobody_foresaw_hides_no_other(tmp_path: Path) -> None:
    """Each is a line that names it."""
    (tmp_path / handshake.STATUS_DIR).mkdir()
    handshake.write_status(tmp_path, STATUS)
    for number, moment in enumerate(_BEYOND):
        body = changed(STATUS.to_bytes(), at=moment)
        (tmp_path / handshake.STATUS_DIR / f"bad{number}.json").write_bytes(body)
    statuses, refused = handshake.read_statuses(tmp_path, owners={os.geteuid()})
    assert [status.run_id for status in statuses] == [STATUS.run_id]
    assert [line.split(":")[0] for line in refused] == ["bad0.json", "bad1.json"]


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
