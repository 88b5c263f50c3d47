# SPDX-License-Identifier: Apache-2.0
"""Which directory is believed, and which flags are watched."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from spotwatch.train import runtime
from spotwatch.train.runtime import COMMON_FLAG, distrust, find_runtime_dir, flag_paths

needs_root = pytest.mark.skipif(os.getuid() != 0, reason="only root can give files away")


def test_the_named_directory_is_taken(runtime_dir: Path, environ: dict[str, str]) -> None:
    """A private directory of our own is trusted."""
    assert find_runtime_dir(environ) == (runtime_dir, "")


def test_a_directory_for_everyone_is_refused(runtime_dir: Path, environ: dict[str, str]) -> None:
    """World-writable is refused, with the sticky bit too, and it is said how to mend it."""
    runtime_dir.chmod(0o1777)
    found, problem = find_runtime_dir(environ)
    assert found is None
    assert "chmod o-w" in problem


@needs_root
@pytest.mark.parametrize(
    ("uid", "gid", "mode", "trusted"),
    [
        (0, 12345, 0o770, True),
        (12345, 12345, 0o770, False),
        (12345, 0, 0o2770, True),
        (12345, 0, 0o2777, False),
    ],
)
def test_owners(runtime_dir: Path, uid: int, gid: int, mode: int, trusted: bool) -> None:
    """Root's, ours, or one of a group of ours; never a stranger's."""
    os.chown(runtime_dir, uid, gid)
    runtime_dir.chmod(mode)
    assert (distrust(runtime_dir) == "") is trusted


@needs_root
def test_a_strangers_link_is_refused(runtime_dir: Path, tmp_path: Path) -> None:
    """A link that a stranger put there is not followed, ours is."""
    link = tmp_path / "link"
    link.symlink_to(runtime_dir)
    assert distrust(link) == ""
    os.chown(link, 12345, 12345, follow_symlinks=False)
    assert "link of uid 12345" in distrust(link)


def test_missing_and_files_are_refused(tmp_path: Path) -> None:
    """Nothing, or something that is no directory, is no runtime directory."""
    (tmp_path / "file").write_text("")
    assert "cannot be used" in distrust(tmp_path / "none")
    assert "not a directory" in distrust(tmp_path / "file")


def test_the_usual_places_are_tried_in_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a name: the machine's, then the session's; what is not to be trusted is passed over, aloud."""
    machines, sessions = tmp_path / "machine", tmp_path / "spotwatch"
    # The machine's own may be there, for a daemon may be installed where the tests run.
    monkeypatch.setattr(runtime, "_SYSTEM_DIR", machines)
    environ = {"XDG_RUNTIME_DIR": str(tmp_path)}
    sessions.mkdir(mode=0o700)
    assert find_runtime_dir(environ) == (sessions, "")
    machines.mkdir(mode=0o700)
    assert find_runtime_dir(environ) == (machines, "")
    machines.chmod(0o777)
    found, problem = find_runtime_dir(environ)
    assert found == sessions
    assert problem == f"runtime directory {machines} may be written by everyone; chmod o-w"


def test_flags() -> None:
    """The common flag is watched unless a directory is named, and one that the daemon is told of always."""
    own = Path("/run/spotwatch")
    assert flag_paths({}, own) == [(own / "checkpoint-now", True), (COMMON_FLAG, False)]
    assert flag_paths({}, None) == [(COMMON_FLAG, False)]
    assert flag_paths({"SPOTWATCH_RUNTIME_DIR": "x"}, own) == [(own / "checkpoint-now", True)]
    assert flag_paths({"SPOTWATCH_RUNTIME_DIR": "x"}, None) == []
    named = {"SPOTWATCH_RUNTIME_DIR": "x", "SPOTWATCH_FLAG__PATH": "/tmp/checkpoint-now"}
    assert flag_paths(named, own) == [(COMMON_FLAG, False)]
    assert flag_paths(named, None) == [(COMMON_FLAG, False)]
