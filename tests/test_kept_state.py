# SPDX-License-Identifier: Apache-2.0
"""A state's file is written when there is something new, and never hides that it was not."""

from __future__ import annotations

from pathlib import Path

import pytest

from spotwatch.errors import HandshakeError
from spotwatch.kept_state import KeptState


def test_only_a_change_is_written(tmp_path: Path) -> None:
    """What the file holds already costs nothing."""
    made = []
    state = KeptState(tmp_path / "s.json", lambda: made.append("x") or b"one")  # type: ignore[func-returns-value]
    assert state.read() is None
    assert state.save()
    assert made == []
    state.changed()
    assert state.save()
    assert state.save()
    assert made == ["x"]
    assert state.read() == b"one"
    assert (tmp_path / "s.json").stat().st_mode & 0o777 == 0o600


def test_what_changes_during_a_save_is_saved_next_time(tmp_path: Path) -> None:
    """The save runs in a thread, beside the loop that changes."""
    values = [b"old"]

    def to_bytes() -> bytes:
        body = values[-1]
        if body == b"old":
            values.append(b"new")
            state.changed()
        return body

    state = KeptState(tmp_path / "s.json", to_bytes)
    state.changed()
    assert state.save()
    assert state.read() == b"old"
    assert state.save()
    assert state.read() == b"new"


def test_a_failed_save_is_told_and_made_up_for(tmp_path: Path) -> None:
    """The problem stays until everything is on disk."""
    state = KeptState(tmp_path / "gone" / "s.json", lambda: b"one")
    state.changed()
    assert not state.save()
    assert "cannot write" in state.problem
    (tmp_path / "gone").mkdir()
    assert state.save()
    assert state.problem == ""


def test_a_link_in_its_place_is_not_followed(tmp_path: Path) -> None:
    """Reading refuses it, writing replaces it."""
    (tmp_path / "victim").write_bytes(b"mine")
    (tmp_path / "s.json").symlink_to(tmp_path / "victim")
    state = KeptState(tmp_path / "s.json", lambda: b"one")
    with pytest.raises(HandshakeError):
        state.read()
    state.changed()
    assert state.save()
    assert (tmp_path / "victim").read_bytes() == b"mine"


def test_without_a_place_nothing_is_written() -> None:
    """Memory is all there is, and that is no problem."""
    state = KeptState(None, lambda: b"one")
    state.changed()
    assert state.save()
    assert state.read() is None
