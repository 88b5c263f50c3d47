# SPDX-License-Identifier: Apache-2.0
"""Files that others may have touched: no link followed, no pipe waited for, no part ever seen."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from spotwatch.errors import HandshakeError
from spotwatch.safe_files import (
    create_exclusively,
    list_json_files,
    list_newest_json_files,
    read_owned_file,
    read_small_file,
    remove_if_there,
    write_atomically,
)
from tests.leaks import open_descriptors


def put(path: Path, what: str) -> None:
    """Put something hostile at `path`."""
    if what == "directory":
        path.mkdir()
    elif what == "pipe":
        os.mkfifo(path)
    elif what == "link":
        (path.parent / "victim").write_text("victim", encoding="ascii")
        path.symlink_to(path.parent / "victim")
    elif what == "dangling link":
        path.symlink_to(path.parent / "nowhere")
    else:
        path.write_bytes(b"x" * 65537)


HOSTILE = ("directory", "pipe", "link", "dangling link", "too long")


@pytest.mark.parametrize("what", HOSTILE)
def test_reading_is_not_fooled(tmp_path: Path, what: str) -> None:
    """Refused at once, whatever it is."""
    put(tmp_path / "f", what)
    with pytest.raises(HandshakeError):
        read_small_file(tmp_path / "f")


def test_reading_leaves_no_descriptor(tmp_path: Path) -> None:
    """Refusals too."""
    for index, what in enumerate(HOSTILE):
        folder = tmp_path / str(index)
        folder.mkdir()
        put(folder / "f", what)
    before = open_descriptors()
    for index in range(len(HOSTILE)):
        with pytest.raises(HandshakeError):
            read_small_file(tmp_path / str(index) / "f")
    assert not open_descriptors() - before


def test_missing_is_none(tmp_path: Path) -> None:
    """No file is no error, nor is a missing folder."""
    assert read_small_file(tmp_path / "f") is None
    assert read_owned_file(tmp_path / "no" / "f") is None
    assert list_json_files(tmp_path / "no", 5) == []
    assert remove_if_there(tmp_path / "f") is False


def test_an_owned_file_says_whose_it_is(tmp_path: Path) -> None:
    """The owner is that of what was read."""
    (tmp_path / "f").write_bytes(b"x")
    assert read_owned_file(tmp_path / "f") == (b"x", os.geteuid())


@pytest.mark.parametrize("what", ["link", "dangling link", "pipe", "too long"])
def test_writing_replaces_and_never_follows(tmp_path: Path, what: str) -> None:
    """A link's target is untouched, the file has our content and our mode."""
    put(tmp_path / "f", what)
    write_atomically(tmp_path / "f", b"new", mode=0o640)
    assert (tmp_path / "f").read_bytes() == b"new"
    assert stat.S_IMODE((tmp_path / "f").lstat().st_mode) == 0o640
    if what == "link":
        assert (tmp_path / "victim").read_text(encoding="ascii") == "victim"


def test_a_write_that_fails_leaves_the_old_content(tmp_path: Path) -> None:
    """And no temporary file."""
    (tmp_path / "f").mkdir()
    with pytest.raises(HandshakeError):
        write_atomically(tmp_path / "f", b"new")
    assert [path.name for path in tmp_path.iterdir()] == ["f"]


@pytest.mark.parametrize("what", HOSTILE)
def test_creating_never_overwrites(tmp_path: Path, what: str) -> None:
    """Whatever is there stays, and says no."""
    put(tmp_path / "f", what)
    before = sorted(path.name for path in tmp_path.iterdir())
    assert create_exclusively(tmp_path / "f", b"new") is False
    assert sorted(path.name for path in tmp_path.iterdir()) == before


def test_created_complete(tmp_path: Path) -> None:
    """The file is there with its whole content and its mode, whatever the umask, and nothing else is."""
    old = os.umask(0o077)
    try:
        assert create_exclusively(tmp_path / "f", b"whole", mode=0o644) is True
    finally:
        os.umask(old)
    assert (tmp_path / "f").read_bytes() == b"whole"
    assert stat.S_IMODE((tmp_path / "f").stat().st_mode) == 0o644
    assert [path.name for path in tmp_path.iterdir()] == ["f"]


@pytest.mark.parametrize("what", ["link", "dangling link", "pipe", "too long"])
def test_removing_takes_the_name_only(tmp_path: Path, what: str) -> None:
    """A link goes, not what it points to; a directory is not ours to remove."""
    put(tmp_path / "f", what)
    assert remove_if_there(tmp_path / "f") is True
    assert not os.path.lexists(tmp_path / "f")
    assert (what != "link") or (tmp_path / "victim").exists()
    (tmp_path / "d").mkdir()
    with pytest.raises(HandshakeError):
        remove_if_there(tmp_path / "d")


def test_listing_is_bounded_and_sorted(tmp_path: Path) -> None:
    """Hidden files and other endings are left out."""
    for name in ("b.json", "a.json", ".c.json", "d.txt", "e.json"):
        (tmp_path / name).touch()
    assert [path.name for path in list_json_files(tmp_path, 2)] == ["a.json", "b.json"]


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to play another user")
def test_nobody_hides_the_files_of_another(tmp_path: Path) -> None:
    """Of each owner the newest; strangers' files, whatever their times, only where room is left."""
    for uid, name, count, modified_at in ((7, "new", 50, 2e9), (8, "old", 50, 1e9), (9, "strange", 50, 3e9)):
        for number in range(count):
            path = tmp_path / f"{name}-{number:02}.json"
            path.touch()
            os.utime(path, (modified_at + number, modified_at + number))
            os.chown(path, uid, -1)
    files, are_more = list_newest_json_files(tmp_path, 20, owners={7, 8})
    wanted = [f"{name}-{number}.json" for name in ("new", "old") for number in range(40, 50)]
    assert ([path.name for path, _ in files], are_more) == (wanted, True)
    files, are_more = list_newest_json_files(tmp_path, 120, owners={7, 8})
    assert (sum(facts.st_uid == 9 for _, facts in files), are_more) == (20, True)
    files, are_more = list_newest_json_files(tmp_path, 150, owners=())
    assert (len(files), are_more) == (150, False)
    assert list_newest_json_files(tmp_path / "missing", 5, owners={7}) == ([], False)
