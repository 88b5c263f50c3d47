# SPDX-License-Identifier: Apache-2.0
"""What a directory store makes of full disks, dead writers, locks, and things that are no files."""

from __future__ import annotations

import errno
import fcntl
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from spotwatch.errors import CheckpointCorrupt, StoreConflict, StoreError
from spotwatch.train.parts import Held
from spotwatch.train.stores import dir_locks
from spotwatch.train.stores.dir_files import new_file
from spotwatch.train.stores.dir_locks import is_local, locked
from spotwatch.train.stores.directory import DirectoryStore

from .refusing import refuse

_HOUR_SECONDS = 3600


def _held(body: bytes) -> Held:
    return Held(memoryview(body), 1000)


@pytest.fixture
def store(tmp_path: Path) -> DirectoryStore:
    """Return an empty store."""
    return DirectoryStore(tmp_path / "run")


def test_a_full_disk_leaves_the_old_object(store: DirectoryStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """A write that fails leaves what was there, and no rubbish."""
    store.put("LATEST", b"old")
    with monkeypatch.context() as patch:
        refuse(patch, "fsync", errno.ENOSPC)
        with pytest.raises(StoreError, match="No space left"):
            store.put("LATEST", b"new")
        with pytest.raises(StoreError, match="No space left"):
            store.upload("LATEST", _held(b"new" * 1000), lambda _: None)
    assert store.get("LATEST", most_bytes=9) == b"old"
    assert [e.key for e in store.list()] == ["LATEST"]


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """Return a file system of one mebibyte."""
    disk = tmp_path / "disk"
    disk.mkdir()
    if os.getuid() != 0 or os.system(f"mount -t tmpfs -o size=1m tmpfs {disk} 2>/dev/null") != 0:
        pytest.skip("cannot mount here")
    yield disk
    assert os.system(f"umount {disk}") == 0


def test_a_disk_that_is_really_full(small_disk: Path) -> None:
    """The same with a true file system."""
    store = DirectoryStore(small_disk)
    store.put("LATEST", b"old")
    with pytest.raises(StoreError, match="No space left"):
        store.put("step/a", b"x" * 2_000_000)
    with pytest.raises(StoreError, match="No space left"):
        store.upload("step/b", _held(b"x" * 2_000_000), lambda _: None)
    assert [e.key for e in store.list()] == ["LATEST"]


def test_a_pipe_in_an_objects_place_holds_nobody(tmp_path: Path) -> None:
    """Opening it would wait for a writer that never comes."""
    os.mkfifo(tmp_path / "LATEST")
    store = DirectoryStore(tmp_path)
    for look in (
        lambda: store.size_bytes("LATEST"),
        lambda: store.get("LATEST", most_bytes=9),
        lambda: store.read_into("LATEST", 0, memoryview(bytearray(1))),
    ):
        with pytest.raises(CheckpointCorrupt, match="LATEST is no file"):
            look()


def test_a_directory_in_an_objects_place_is_put_aside(tmp_path: Path) -> None:
    """Without that no save could ever succeed again."""
    (tmp_path / "LATEST").mkdir()
    store = DirectoryStore(tmp_path)
    store.upload("LATEST", _held(b"new"), lambda _: None)
    assert store.get("LATEST", most_bytes=9) == b"new"


def test_the_same_bytes_again_are_another_version(store: DirectoryStore) -> None:
    """A, B, A: who read the first A is not fooled, however quick the writers and their clock were."""
    versions = [store.put_if("LATEST", b"A", None)]
    for body in (b"B", b"A") * 20:
        versions.append(store.put_if("LATEST", body, versions[-1]))
    assert len(set(versions)) == len(versions)
    for version in versions[:-1]:
        with pytest.raises(StoreConflict):
            store.put_if("LATEST", b"C", version)
    store.put_if("LATEST", b"C", versions[-1])


def test_versions_do_not_go_back_with_the_clock(store: DirectoryStore) -> None:
    """A file's time only grows, also after one that another machine wrote with a clock ahead of ours."""
    store.put("LATEST", b"A")
    path = store.root / "LATEST"
    ahead_ns = time.time_ns() + 10**12
    os.utime(path, ns=(ahead_ns, ahead_ns))
    before = path.stat().st_mtime_ns
    store.put_if("LATEST", b"B", store.read("LATEST", most_bytes=9)[1])
    assert path.stat().st_mtime_ns > before


def test_bytes_that_were_changed_in_place_are_another_version(store: DirectoryStore) -> None:
    """Somebody wrote into the file and put its time back."""
    version = store.put_if("LATEST", b"A", None)
    path = store.root / "LATEST"
    facts = path.stat()
    path.write_bytes(b"B")
    os.utime(path, ns=(facts.st_atime_ns, facts.st_mtime_ns))
    with pytest.raises(StoreConflict):
        store.put_if("LATEST", b"C", version)


def test_processes_do_not_lose_counts(tmp_path: Path) -> None:
    """Three processes count in one object, and every count is there."""
    script = """
import sys; from pathlib import Path
from spotwatch.errors import StoreConflict
from spotwatch.train.stores.directory import DirectoryStore
store, done = DirectoryStore(Path(sys.argv[1])), 0
while done < 15:
    body, version = store.read("COUNT", most_bytes=99)
    try:
        store.put_if("COUNT", f"{int(body.split()[0]) + 1} {sys.argv[2]}".encode(), version)
    except StoreConflict:
        continue
    done += 1
"""
    store = DirectoryStore(tmp_path)
    store.put_if("COUNT", b"0 start", None)
    counting = [subprocess.Popen([sys.executable, "-c", script, str(tmp_path), str(who)]) for who in range(3)]
    assert [process.wait(20) for process in counting] == [0, 0, 0]
    assert store.get("COUNT", most_bytes=99).split()[0] == b"45"


def test_without_links_an_object_is_still_made_once(
    store: DirectoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Some file systems know no links; the lock is enough for those who honour it."""
    refuse(monkeypatch, "link", errno.EPERM)
    store.put_if("LEASE", b"1", None)
    with pytest.raises(StoreConflict):
        store.put_if("LEASE", b"2", None)
    assert store.get("LEASE", most_bytes=9) == b"1"


def test_a_link_whose_answer_was_lost(store: DirectoryStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file server made it, and on the second try says that the name is taken: by us."""
    link = os.link

    def twice(source: Path, target: Path) -> None:
        link(source, target)
        link(source, target)

    monkeypatch.setattr(os, "link", twice)
    store.put_if("LEASE", b"1", None)
    assert store.get("LEASE", most_bytes=9) == b"1"
    assert [e.key for e in store.list()] == ["LEASE"]


@pytest.mark.parametrize("number", [errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP])
def test_without_locks_it_is_not_conditional(
    store: DirectoryStore, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    """It says so, and writes nothing in the belief that it could."""
    refuse(monkeypatch, "flock", number)
    assert store.is_conditional is False
    with pytest.raises(StoreError, match="cannot be locked"):
        store.put_if("LEASE", b"1", None)
    assert list(store.list()) == []


def test_a_lock_that_nobody_gives_back(store: DirectoryStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """A holder that was stopped in the middle does not hold the others for ever."""
    monkeypatch.setattr(dir_locks, "_PATIENCE_SECONDS", 0.05)
    store.root.mkdir()
    with locked(store.root), pytest.raises(StoreError, match=r"has been locked .* fuser"):
        store.put_if("LEASE", b"1", None)
    store.put_if("LEASE", b"1", None)


def test_a_child_that_was_forked_inside_the_lock_holds_nobody(store: DirectoryStore) -> None:
    """Loader workers are forked at any moment, and live long."""
    store.root.mkdir()
    read, write = os.pipe()
    with locked(store.root):
        child = os.fork()
        if child == 0:
            os.close(write)
            os.read(read, 1)
            os._exit(0)
    try:
        store.put_if("LEASE", b"1", None)
    finally:
        os.close(write)
        os.close(read)
        os.waitpid(child, 0)


_MOUNTS = """\
25 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw
30 25 0:50 / /bucket rw,nosuid shared:2 - fuse.gcsfuse bucket rw,user_id=0
31 25 0:51 / /nfs rw shared:3 - nfs4 server:/x rw,vers=4.2,hard,local_lock=none
32 25 0:52 / /old rw shared:4 - nfs server:/y rw,vers=3,nolock,local_lock=all
33 25 0:53 / /lustre rw - lustre mds:/z rw,localflock
34 25 0:54 / /guest rw - virtiofs share rw
35 25 0:55 / /odd rw shared:5
"""


@pytest.mark.parametrize(
    ("device", "wanted"),
    [
        ("8:1", False),
        ("0:50", True),
        ("0:51", False),
        ("0:52", True),
        ("0:53", True),
        ("0:54", True),
        ("0:55", False),
        ("9:9", False),
    ],
)
def test_whose_locks_reach_other_machines(device: str, wanted: bool) -> None:
    """Not those of buckets behind FUSE, of files shared with a guest, and of mounts that were told so."""
    assert is_local(_MOUNTS, device) is wanted


def test_temporary_files_of_the_dead_are_removed(store: DirectoryStore) -> None:
    """Of a process that is gone at once, of another machine after an hour, of a living one never."""
    script = """
import os, sys; from pathlib import Path
from spotwatch.train.stores.dir_files import new_file
with new_file(Path(sys.argv[1])) as (fd, _):
    os.write(fd, b"half")
    os._exit(0)
"""
    store.put("step-1/a", b"1")
    subprocess.run([sys.executable, "-c", script, str(store.root / "step-2" / "dead")], check=True)
    for name, age_seconds in (("old", _HOUR_SECONDS + 60), ("young", 60)):
        path = store.root / "step-1" / f"{name}.0badcafe-99999999-00000000.tmp"
        path.write_bytes(b"half")
        os.utime(path, (time.time() - age_seconds,) * 2)
    with new_file(store.root / "step-1" / "mine"):
        assert store.abort_uploads() == 2
        left = [e.key for e in store.list()]
    assert [key.split(".")[0] for key in sorted(left)] == ["step-1/a", "step-1/mine", "step-1/young"]
    assert not (store.root / "step-2").exists()


def test_one_directory_is_emptied_while_another_writes_there(store: DirectoryStore) -> None:
    """Who removes the last object of a directory removes the directory; a writer makes it anew."""

    def use(key: str) -> None:
        for _ in range(100):
            store.put(key, b"1")
            store.delete(key)

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(use, ["step/a", "step/b"]))
    assert list(store.list()) == []


def test_a_body_that_is_shorter_than_it_said(store: DirectoryStore) -> None:
    """The size of what was written is compared before anyone sees it."""

    class Liar(Held):
        """Its parts are fewer than its bytes."""

        @property
        def size_bytes(self) -> int:
            return 5000

    with pytest.raises(StoreError, match="got 3000 bytes instead of 5000"):
        store.upload("step/a", Liar(memoryview(b"x" * 3000), 1000), lambda _: None)
    assert list(store.list()) == []


def test_the_lock_is_no_object(store: DirectoryStore) -> None:
    """Its file is there, but nobody is told."""
    store.put_if("LEASE", b"1", None)
    assert (store.root / ".lock").exists()
    assert [e.key for e in store.list()] == ["LEASE"]
    with (store.root / ".lock").open("rb") as file:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)


def test_a_root_is_removed_only_when_it_is_empty(tmp_path: Path) -> None:
    """The lock goes with it; a directory that still holds an object stays as it is."""
    store = DirectoryStore(tmp_path / "run")
    store.put_if("LEASE", b"1", None)
    store.remove()
    assert store.get("LEASE", most_bytes=9) == b"1"
    store.delete("LEASE")
    store.remove()
    assert not store.root.exists()
    store.remove()


def test_no_lock_is_held_while_the_disk_is_slow(
    store: DirectoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process that is stopped in the middle of a write, and wakes never, holds nobody up."""
    first = store.put_if("LEASE", b"1", None)
    real = os.fsync
    synced: list[int] = []

    def fsync(fd: int) -> None:
        lock = os.open(store.root / ".lock", os.O_RDWR)
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)  # it is free
        os.close(lock)
        synced.append(fd)
        real(fd)

    monkeypatch.setattr(os, "fsync", fsync)
    store.put_if("LEASE", b"2", first)
    store.put_if("other", b"3", None)
    assert len(synced) >= 4
