# SPDX-License-Identifier: Apache-2.0
"""Whose eyes a secret file may be open to, and that a Secret is taken as the kubelet hands it out."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import spotwatch
from spotwatch.config_secrets import is_private
from tests.cli.stranger import open_to_all
from tests.open_folder import open_folder

POD = 65532
"""User, group and fsGroup of the shipped pods."""
_FILE = 0o100000


@pytest.fixture
def folder() -> Iterator[Path]:
    """Give a folder that the pod's user can look into."""
    with open_folder() as made:
        yield made


@pytest.mark.parametrize(
    ("mode", "uid", "gid", "private"),
    [
        (0o600, POD, POD, True),
        (0o400, 0, 0, True),
        (0o440, 0, POD, True),
        (0o640, 0, POD, True),
        (0o440, 0, 2000, True),
        (0o440, 0, 3000, False),  # root's, but of a group that is not ours
        (0o440, 1000, POD, False),  # somebody else's, who may write what he likes
        (0o440, POD, POD, False),  # ours: the group may be the default one of all users
        (0o460, 0, POD, False),
        (0o444, 0, POD, False),
        (0o441, 0, POD, False),
        (0o450, 0, POD, False),
        (0o404, 0, POD, False),
    ],
)
def test_only_a_group_of_ours_may_read_and_only_what_is_roots(
    mode: int, uid: int, gid: int, *, private: bool
) -> None:
    """A bit more, another owner or another group, and the file is refused."""
    facts = os.stat_result((_FILE | mode, 1, 1, 1, uid, gid, 10, 0, 0, 0))
    assert is_private(facts, groups={POD, 2000}) is private


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to give a file to root and another group")
@pytest.mark.parametrize(("group", "mode", "taken"), [(POD, 0o440, True), (3000, 0o444, False)])
def test_secret_of_a_pod_is_taken(folder: Path, group: int, mode: int, *, taken: bool) -> None:
    """As user 65532, a real file behind the kubelet's links: root's, 0440, of the pod's group."""
    volume = folder / "..2026_11_30"
    volume.mkdir()
    (volume / "webhook").write_text("whsec_abc\n", encoding="utf-8")
    os.chown(volume / "webhook", 0, group)
    (volume / "webhook").chmod(mode)
    (folder / "..data").symlink_to(volume.name)
    (folder / "webhook").symlink_to("..data/webhook")
    open_to_all(volume)
    done = load_as_pod(folder / "webhook")
    assert (done.returncode == 0) is taken, done.stderr
    assert ("is accessible to others" in done.stderr) is not taken
    assert done.stdout == ("whsec_abc\n" if taken else "")


def load_as_pod(path: Path) -> subprocess.CompletedProcess[str]:
    """Find and read a secret as the pod's user; who it becomes is decided after all is imported."""
    program = (
        "import os, sys\n"
        "from spotwatch.config_secrets import locate_secret, read_secret\n"
        f"os.setgroups([]); os.setgid({POD}); os.setuid({POD})\n"
        "print(read_secret(locate_secret(sys.argv[1], {})))\n"
    )
    return subprocess.run(
        [sys.executable, "-c", program, str(path)],
        cwd=Path(spotwatch.__file__).parents[1],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
