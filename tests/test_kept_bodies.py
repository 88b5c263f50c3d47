# SPDX-License-Identifier: Apache-2.0
"""Malformed answers on disk: few, small, ours alone, and never in the way."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from spotwatch.kept_bodies import FOLDER, MAX_BYTES, MAX_FILES, MAX_UNPROVEN, KeptBodies


def test_kept(tmp_path: Path) -> None:
    """The bytes as they came, readable by us alone."""
    name = KeptBodies(tmp_path).keep("aws", "instance-action", b"<html>")
    path = tmp_path / FOLDER / name
    assert path.read_bytes() == b"<html>"
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.parent.stat().st_mode & 0o777 == 0o700


def test_small(tmp_path: Path) -> None:
    """Ten megabytes become 64 KiB."""
    name = KeptBodies(tmp_path).keep("aws", "s", b"x" * 10_000_000)
    assert (tmp_path / FOLDER / name).stat().st_size == MAX_BYTES


def test_few(tmp_path: Path) -> None:
    """Twenty, whoever kept them: the oldest go."""
    for life in range(2):
        bodies = KeptBodies(tmp_path)
        for number in range(15):
            name = bodies.keep("aws", f"life-{life}", str(number).encode())
            os.utime(tmp_path / FOLDER / name, (life * 100 + number,) * 2)
        (tmp_path / FOLDER / f"aws-life-{life}-{os.getpid()}-1.body").rename(
            tmp_path / FOLDER / f"first-{life}"
        )
        for path in (tmp_path / FOLDER).glob("aws-life-0-*"):
            path.rename(path.with_name(f"old-{path.name}"))
    kept = list((tmp_path / FOLDER).iterdir())
    assert len(kept) == MAX_FILES
    assert sum(path.name.startswith("aws-life-1") for path in kept) == 14


def test_a_life_with_the_same_process_id_keeps_its_own(tmp_path: Path) -> None:
    """As in a container, where each life is process 1."""
    names = [KeptBodies(tmp_path).keep("digitalocean", "mail", f"life {n}".encode()) for n in range(3)]
    assert [(tmp_path / FOLDER / name).read_bytes() for name in names] == [b"life 0", b"life 1", b"life 2"]


def test_what_anybody_may_have_written_displaces_nothing_else(tmp_path: Path) -> None:
    """Of forged mails ten are kept, and the genuine one beside them whenever it came."""
    for count in (0, 30):
        bodies = KeptBodies(tmp_path)
        genuine = bodies.keep("digitalocean", "mail", b"genuine")
        for number in range(count):
            name = bodies.keep("digitalocean", "mail", b"forged", is_proven=False)
            os.utime(tmp_path / FOLDER / name, (number, number))
        assert (tmp_path / FOLDER / genuine).read_bytes() == b"genuine"
    kept = [path.read_bytes() for path in (tmp_path / FOLDER).iterdir()]
    assert (kept.count(b"genuine"), kept.count(b"forged")) == (2, MAX_UNPROVEN)


def test_a_link_in_the_way_is_not_followed(tmp_path: Path) -> None:
    """It stays what it is, and the body has another name."""
    (tmp_path / FOLDER).mkdir()
    link = tmp_path / FOLDER / f"aws-s-{os.getpid()}-1.body"
    link.symlink_to(tmp_path / "elsewhere")
    name = KeptBodies(tmp_path).keep("aws", "s", b"x")
    assert (tmp_path / FOLDER / name).read_bytes() == b"x"
    assert link.is_symlink()
    assert not (tmp_path / "elsewhere").exists()


@pytest.mark.parametrize("obstacle", ["nowhere", "no body", "file in the way"])
def test_nothing_is_kept(tmp_path: Path, obstacle: str) -> None:
    """No place, no body, or something in the way: nothing is written and nothing is raised."""
    body = b"" if obstacle == "no body" else b"x"
    if obstacle == "file in the way":
        (tmp_path / FOLDER).touch()
    bodies = KeptBodies(None if obstacle == "nowhere" else tmp_path)
    assert bodies.keep("aws", "s", body) == ""
