# SPDX-License-Identifier: Apache-2.0
"""Where the directories are when nobody says so.

Creating them is in test_rundir.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from spotwatch.config_load import load
from spotwatch.config_places import choose_runtime_dir, choose_state_dir, closed_folder, is_writable


def only(*places: str) -> Callable[[Path], bool]:
    """Return an `is_writable` that knows these places."""
    return lambda path: str(path) in places


@pytest.mark.parametrize(
    ("env", "writable", "path", "source"),
    [
        ({"RUNTIME_DIRECTORY": "/run/a:/run/b"}, ("/run/spotwatch",), "/run/a", "RUNTIME_DIRECTORY"),
        ({"XDG_RUNTIME_DIR": "/run/user/7"}, ("/run/spotwatch", "/run/user/7"), "/run/spotwatch", "default"),
        ({"XDG_RUNTIME_DIR": "/run/user/7"}, ("/run/user/7",), "/run/user/7/spotwatch", "XDG_RUNTIME_DIR"),
        ({"XDG_RUNTIME_DIR": "/run/user/0"}, (), "/tmp/spotwatch-7", "default"),
        ({"XDG_RUNTIME_DIR": "relative"}, ("relative",), "/tmp/spotwatch-7", "default"),
        ({"RUNTIME_DIRECTORY": ""}, (), "/tmp/spotwatch-7", "default"),
    ],
)
def test_runtime_dir(env: dict[str, str], writable: tuple[str, ...], path: str, source: str) -> None:
    """Systemd's, else the system's, else the session's, else one in /tmp."""
    assert choose_runtime_dir(env, uid=7, is_writable=only(*writable)) == (Path(path), source)


@pytest.mark.parametrize(
    ("env", "writable", "path", "source"),
    [
        ({"STATE_DIRECTORY": "/var/lib/a:/b"}, ("/var/lib/a",), "/var/lib/a", "STATE_DIRECTORY"),
        ({"STATE_DIRECTORY": "/var/lib/a"}, ("/var/lib/spotwatch",), None, "STATE_DIRECTORY"),
        ({"HOME": "/h"}, ("/var/lib/spotwatch",), "/var/lib/spotwatch", "default"),
        ({"XDG_STATE_HOME": "/s", "HOME": "/h"}, ("/s/spotwatch",), "/s/spotwatch", "XDG_STATE_HOME"),
        ({"HOME": "/h"}, ("/h/.local/state/spotwatch",), "/h/.local/state/spotwatch", "default"),
        ({"HOME": "/h"}, (), None, "default"),
        ({}, (), None, "default"),
    ],
)
def test_state_dir(env: dict[str, str], writable: tuple[str, ...], path: str | None, source: str) -> None:
    """Systemd's, else the system's, else the user's, else memory only, with a warning."""
    found, by, warning = choose_state_dir(env, is_writable=only(*writable))
    assert (found, by) == (None if path is None else Path(path), source)
    assert ("memory only" in warning) == (path is None)


@pytest.mark.skipif(os.geteuid() == 0, reason="no directory is closed to root: run it as an ordinary user")
def test_writable_is_asked_of_the_system(tmp_path: Path) -> None:
    """A closed directory is not writable for an ordinary user."""
    tmp_path.chmod(0o500)
    assert not is_writable(tmp_path / "a")


def test_writable_looks_at_the_nearest_parent(tmp_path: Path) -> None:
    """What can be made counts as writable; a file or a dead link in the way does not."""
    assert is_writable(tmp_path)
    assert is_writable(tmp_path / "a" / "b")
    (tmp_path / "file").touch()
    assert not is_writable(tmp_path / "file" / "a")
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    assert not is_writable(tmp_path / "link")


def test_unwritable_state_is_a_warning_not_an_error() -> None:
    """The watch goes on without a memory of the last run."""
    loaded = load(
        path=None,
        environ={"SPOTWATCH_STATE_DIR": "/proc/x"},
        flags={},
        provider_configs=lambda _: int,
        default_path=Path("/none"),
        is_writable=only(),
    )
    assert loaded.settings.state_dir is None
    assert loaded.warnings == ("state_dir: /proc/x is not writable; memory only, nothing outlives a restart",)


def test_a_closed_folder_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first directory that may not be searched hides what is below; a missing one hides nothing."""
    path = tmp_path / "a" / "b" / "c"
    path.mkdir(parents=True)
    assert closed_folder(path) is None
    assert closed_folder(tmp_path / "none" / "b") is None
    monkeypatch.setattr(
        os, "access", lambda folder, _: Path(folder) not in (tmp_path / "a", tmp_path / "a" / "b")
    )
    assert closed_folder(path) == tmp_path / "a"
    assert closed_folder(tmp_path / "a") is None
