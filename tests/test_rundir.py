# SPDX-License-Identifier: Apache-2.0
"""A runtime directory that trainer and daemon share, that no stranger can plant, and that one daemon holds.

What the files in it mean is tested with the handshake.
"""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from spotwatch.config import Flag, Settings
from spotwatch.config_check import LOCK
from spotwatch.errors import ConfigError
from spotwatch.rundir import check_runtime_dir, choose_access, clear_the_way, prepare_runtime_dir
from spotwatch.runtime_lock import lock_runtime_dir
from tests.cli.stranger import open_to_all

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root to play another user")
TRAINER = (12345, 12346)


def mode_of(path: Path) -> int:
    """Return the permission bits of `path`."""
    return stat.S_IMODE(path.stat().st_mode)


def settings_for(path: Path, owner: str = "") -> Settings:
    """Return settings with this runtime directory."""
    return Settings(runtime_dir=path, flag=Flag(owner=owner))


@pytest.mark.parametrize(
    ("owner", "uid", "is_named", "mode", "gid"),
    [
        (TRAINER, 0, False, 0o2770, 12346),
        (TRAINER, 0, True, 0o2770, 12346),
        (None, 0, False, 0o2770, -1),
        (None, 1000, False, 0o700, -1),
        ((1000, 1000), 1000, False, 0o700, -1),
        (TRAINER, 1000, True, 0o2770, 12346),
    ],
)
def test_who_may_use_it(owner: tuple[int, int] | None, uid: int, is_named: bool, mode: int, gid: int) -> None:
    """Root shares with the trainer's group; others share only when told to."""
    access = choose_access(owner, uid=uid, is_owner_named=is_named)
    assert (access.mode, access.gid) == (mode, gid)
    assert access.uids >= {0, uid}


def test_made_with_its_folders(tmp_path: Path) -> None:
    """All three directories exist with one mode, parents included, and a second call changes nothing."""
    path = tmp_path / "deep" / "run"
    for _ in range(2):
        prepare_runtime_dir(settings_for(path))
        wanted = 0o2770 if os.geteuid() == 0 else 0o700
        assert [mode_of(p) for p in (path, path / "status", path / "notices")] == [wanted] * 3


@needs_root
def test_given_to_the_trainers_group(tmp_path: Path) -> None:
    """The target's group may write; `flag.owner` goes before the target."""
    path = tmp_path / "run"
    prepare_runtime_dir(settings_for(path), TRAINER)
    for folder in (path, path / "status", path / "notices"):
        assert (folder.stat().st_uid, folder.stat().st_gid, mode_of(folder)) == (0, 12346, 0o2770)
    prepare_runtime_dir(settings_for(path, "12345:777"), TRAINER)
    assert {p.stat().st_gid for p in (path, path / "status", path / "notices")} == {777}
    assert mode_of(path / "notices") == 0o2770


def test_a_directory_that_is_shared_already_is_not_closed(tmp_path: Path) -> None:
    """Whoever made it for a group meant it; an ordinary daemon must not lock the trainer out."""
    path = tmp_path / "run"
    path.mkdir(mode=0o700)
    path.chmod(0o2770)
    prepare_runtime_dir(settings_for(path))
    assert mode_of(path) == 0o2770


def test_link_is_refused(tmp_path: Path) -> None:
    """A link planted under the name is not followed."""
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (tmp_path / "run").symlink_to(elsewhere)
    with pytest.raises(ConfigError, match="is a link"):
        prepare_runtime_dir(settings_for(tmp_path / "run"))
    assert list(elsewhere.iterdir()) == []


@pytest.mark.parametrize("name", ["status", "notices"])
def test_link_inside_is_refused(name: str, tmp_path: Path) -> None:
    """The same holds for the folders within."""
    path = tmp_path / "run"
    path.mkdir()
    (tmp_path / "elsewhere").mkdir()
    (path / name).symlink_to(tmp_path / "elsewhere")
    with pytest.raises(ConfigError, match=f"run/{name} is a link"):
        prepare_runtime_dir(settings_for(path))


@pytest.mark.parametrize("how", ["link", "file", "open folder"])
@pytest.mark.parametrize("name", ["status", "notices"])
def test_what_a_trainer_put_in_our_way_is_set_aside(name: str, how: str, tmp_path: Path) -> None:
    """Each makes a line and no end of the daemon; nothing is lost, and nothing behind a link is touched."""
    path = tmp_path / "run"
    prepare_runtime_dir(settings_for(path))
    assert clear_the_way(path) == []
    (tmp_path / "elsewhere").mkdir()
    (path / name).rmdir()
    if how == "link":
        (path / name).symlink_to(tmp_path / "elsewhere")
    elif how == "file":
        (path / name).write_text("mine", encoding="utf-8")
    else:
        (path / name).mkdir()
        (path / name).chmod(0o777)
    (line,) = clear_the_way(path)
    assert f"{path / name} was replaced" in line
    assert len(list(path.glob(f"{name}.refused-*"))) == 1
    prepare_runtime_dir(settings_for(path))
    assert (path / name).is_dir()
    assert list((tmp_path / "elsewhere").iterdir()) == []


def test_a_folder_in_place_of_the_lock_is_set_aside(tmp_path: Path) -> None:
    """It would keep every daemon from starting; afterwards the lock can be taken."""
    (tmp_path / LOCK).mkdir()
    assert len(clear_the_way(tmp_path)) == 1
    lock_runtime_dir(tmp_path).close()


def test_folders_of_a_shared_directory_are_shared(tmp_path: Path) -> None:
    """The bit that hands the group down comes from above, whatever the umask: a sandbox forbids to set it."""
    path = tmp_path / "run"
    path.mkdir()
    path.chmod(0o2770)
    before = os.umask(0o027)
    try:
        prepare_runtime_dir(settings_for(path))
        assert os.umask(0o027) == 0o027
    finally:
        os.umask(before)
    assert [mode_of(path / name) for name in ("status", "notices")] == [0o2770] * 2


@pytest.mark.parametrize("name", ["", "notices"])
def test_directory_open_to_everyone_is_refused(name: str, tmp_path: Path) -> None:
    """What everyone could write to may hold a planted notice already, so it is not mended silently."""
    path = tmp_path / "run"
    (path / name).mkdir(parents=True)
    (path / name).chmod(0o777)
    with pytest.raises(ConfigError, match="writable by everyone"):
        prepare_runtime_dir(settings_for(path))


def test_file_in_its_place_is_refused(tmp_path: Path) -> None:
    """A file under the name is said to be one."""
    (tmp_path / "run").write_text("", encoding="utf-8")
    with pytest.raises(ConfigError, match="not a directory"):
        prepare_runtime_dir(settings_for(tmp_path / "run"))


@needs_root
def test_strangers_directory_is_refused(tmp_path: Path) -> None:
    """A third user's directory is neither root's, ours nor the trainer's."""
    path = tmp_path / "run"
    path.mkdir()
    os.chown(path, 4242, 4242)
    with pytest.raises(ConfigError, match="belongs to uid 4242"):
        prepare_runtime_dir(settings_for(path), TRAINER)
    os.chown(path, *TRAINER)
    prepare_runtime_dir(settings_for(path), TRAINER)


@needs_root
def test_ordinary_user_gets_a_private_one_and_reasons(tmp_path: Path) -> None:
    """As another user: mode 0700 in one's own place, and an explanation where one may not write."""
    home = tmp_path / "home"
    home.mkdir()
    os.chown(home, 12345, 12345)
    script = (
        "import sys; from pathlib import Path; from spotwatch.config import Settings\n"
        "from spotwatch.rundir import prepare_runtime_dir; import os\n"
        # The interpreter itself may lie where only root can read, so it changes after its imports.
        "os.setgroups([]); os.setgid(12345); os.setuid(12345)\n"
        "try: prepare_runtime_dir(Settings(runtime_dir=Path(sys.argv[1])))\n"
        "except Exception as e: print(type(e).__name__, e)\n"
    )

    def run_as_user(path: Path) -> str:
        open_to_all(tmp_path)
        return subprocess.run(
            [sys.executable, "-c", script, str(path)], capture_output=True, text=True, check=True
        ).stdout

    assert run_as_user(home / "run") == ""
    assert mode_of(home / "run") == 0o700
    assert mode_of(home / "run" / "notices") == 0o700
    assert "run as its owner or as root" in run_as_user(tmp_path / "run")


def test_check_of_a_foreign_directory(tmp_path: Path) -> None:
    """Only a real directory of the users named passes."""
    check_runtime_dir(tmp_path, uids=frozenset({os.geteuid()}))
    with pytest.raises(ConfigError, match="belongs to uid"):
        check_runtime_dir(tmp_path, uids=frozenset({987654}))
    with pytest.raises(ConfigError, match="cannot be used: No such file"):
        check_runtime_dir(tmp_path / "none", uids=frozenset())
