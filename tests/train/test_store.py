# SPDX-License-Identifier: Apache-2.0
"""One contract, three stores: a directory, an S3 server, the same server as Spaces; and what a URL means."""

from __future__ import annotations

import errno
import itertools
import os
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from spotwatch.errors import CheckpointCorrupt, ConfigError, StoreError, StoreMissing
from spotwatch.train.store import Store, open_store
from spotwatch.train.store_dir import DirectoryStore

from .conftest import S3

_numbers = itertools.count()


@pytest.fixture(params=["path", "file", "s3", "spaces"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    """Return an empty store of each kind."""
    run_id = f"run-{next(_numbers)}"
    if request.param == "path":
        return open_store(str(tmp_path / "store"), run_id, {})
    if request.param == "file":
        return open_store((tmp_path / "a store").as_uri(), run_id, {})
    s3: S3 = request.getfixturevalue("s3")
    return open_store(s3.url if request.param == "s3" else s3.spaces_url, run_id, s3.environ)


def test_bytes_come_back(store: Store) -> None:
    """What is put is got, whole and in pieces, and is replaced by the next."""
    body = os.urandom(9_000_000)
    store.put("step/a", b"old")
    store.put("step/a", memoryview(bytearray(body)))
    assert store.get("step/a", most_bytes=len(body)) == body
    assert b"".join(store.stream("step/a")) == body
    assert store.size_bytes("step/a") == len(body)


def test_large_bodies_go_in_parts(store: Store) -> None:
    """A body above one part is stored whole."""
    body = memoryview(bytearray(os.urandom(1024)) * (40 * 1024))
    store.put("big", body)
    assert store.size_bytes("big") == len(body)
    assert b"".join(store.stream("big")) == body


def test_empty_bodies(store: Store) -> None:
    """Nothing is something."""
    store.put("empty", b"")
    assert store.get("empty", most_bytes=1) == b""


def test_missing_is_missing(store: Store) -> None:
    """An absent object is told apart from trouble, and deleting it is none."""
    for ask in (lambda: store.get("x/y", most_bytes=9), lambda: list(store.stream("x/y"))):
        with pytest.raises(StoreMissing):
            ask()
    with pytest.raises(StoreMissing):
        store.size_bytes("x/y")
    store.delete("x/y")


def test_too_large_is_corrupt(store: Store) -> None:
    """A hostile pointer of gigabytes is not read into memory."""
    store.put("LATEST", b"x" * 100)
    with pytest.raises(CheckpointCorrupt):
        store.get("LATEST", most_bytes=99)


def test_listing_and_deleting(store: Store) -> None:
    """All below the root is listed, with sizes, and nothing of the neighbour whose name begins alike."""
    assert list(store.list()) == []
    store.put("LATEST", b"1")
    store.put("step-1/a", b"22")
    assert sorted((e.key, e.size_bytes) for e in store.list()) == [("LATEST", 1), ("step-1/a", 2)]
    store.delete("step-1/a")
    assert [e.key for e in store.list()] == ["LATEST"]


def test_more_than_a_page(s3: S3) -> None:
    """1,001 objects and more are listed."""
    store = open_store(s3.url, f"run-{next(_numbers)}", s3.environ)
    for number in range(1005):
        s3.client.put_object(
            Bucket="bucket", Key=f"{store.url.removeprefix('s3://bucket/')}/{number}", Body=b""
        )
    assert len({e.key for e in store.list()}) == 1005


def test_no_bucket_is_trouble_not_absence(s3: S3) -> None:
    """A bucket that is not there must never look like a fresh run."""
    store = open_store("s3://no-such-bucket/x", "run", s3.environ)
    with pytest.raises(StoreError) as caught:
        store.get("LATEST", most_bytes=10)
    assert not isinstance(caught.value, StoreMissing)


def test_nobody_there_is_trouble(s3: S3, monkeypatch: pytest.MonkeyPatch) -> None:
    """A refused connection is a StoreError that names the object and no secret."""
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
    store = open_store("s3://bucket/x", "run", {"AWS_ENDPOINT_URL": "http://127.0.0.1:9"})
    with pytest.raises(StoreError, match="s3://bucket/x/run/LATEST") as caught:
        store.get("LATEST", most_bytes=10)
    assert "testing" not in str(caught.value)


@pytest.fixture
def rude() -> Iterator[ThreadingHTTPServer]:
    """Return a server that answers what its `answer` says, with a length that may be a lie."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:  # the name is http.server's
            status, body, length = self.server.answer  # type: ignore[attr-defined]
            self.send_response(status)
            self.send_header("Content-Length", str(length))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *args: object) -> None:
            """Say nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield server
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.mark.parametrize(
    ("status", "body", "length", "wanted"),
    [
        (403, b"<Error><Code>AccessDenied</Code><Message>no</Message></Error>", 0, "AccessDenied"),
        (403, b"<html>a proxy says no</html>", 0, "cannot read"),
        (200, b"half of i", 100, "cannot read"),
    ],
)
def test_a_server_that_refuses_or_hangs_up(
    rude: ThreadingHTTPServer, s3: S3, status: int, body: bytes, length: int, wanted: str
) -> None:
    """403 and a torn body are trouble: never absence, never a short object."""
    rude.answer = (status, body, length or len(body))  # type: ignore[attr-defined]
    endpoint = f"http://127.0.0.1:{rude.server_port}"
    store = open_store("s3://bucket/x", "run", {"AWS_ENDPOINT_URL": endpoint})
    with pytest.raises(StoreError, match=wanted) as caught:
        store.get("LATEST", most_bytes=1000)
    assert type(caught.value) is StoreError


@pytest.mark.parametrize(
    ("url", "environ", "wanted"),
    [
        ("", {}, "empty"),
        ("gs://bucket", {}, "no store for gs"),
        ("file://host/x", {}, "three slashes"),
        ("s3:///x", {}, "names no bucket"),
        ("s3://key:secret@bucket", {}, "credentials belong"),
        ("spaces://", {}, "SPACES_BUCKET"),
        ("spaces://b", {"SPACES_KEY": "k"}, "SPACES_SECRET"),
        ("spaces://b", {"SPACES_KEY": "k", "SPACES_SECRET": "s"}, "SPACES_REGION"),
    ],
)
def test_urls_that_mean_nothing(url: str, environ: dict[str, str], wanted: str) -> None:
    """Each mistake gets its own words, without the secret."""
    with pytest.raises(ConfigError, match=wanted) as caught:
        open_store(url, "run", environ)
    assert "key:secret" not in str(caught.value)


def test_spaces_picks_its_endpoint() -> None:
    """The region makes the address; the bucket may come from the environment."""
    environ = {"SPACES_KEY": "k", "SPACES_SECRET": "s", "SPACES_REGION": "nyc3", "SPACES_BUCKET": "b"}
    store = open_store("spaces:///runs", "run", environ)
    assert store.url == "spaces://b/runs/run"
    client = store._client()  # type: ignore[attr-defined]
    assert client.meta.endpoint_url == "https://nyc3.digitaloceanspaces.com"
    assert client.meta.config.request_checksum_calculation == "when_required"


Break = Callable[[pytest.MonkeyPatch], None]


def _full(monkeypatch: pytest.MonkeyPatch) -> None:
    def fsync(fd: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", fsync)


def test_a_full_disk_leaves_the_old_object(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A write that fails leaves what was there, and no rubbish."""
    store = DirectoryStore(tmp_path)
    store.put("LATEST", b"old")
    with monkeypatch.context() as patch:
        _full(patch)
        with pytest.raises(StoreError, match="No space left"):
            store.put("LATEST", b"new")
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
    assert [e.key for e in store.list()] == ["LATEST"]


def test_a_pipe_in_an_objects_place_holds_nobody(tmp_path: Path) -> None:
    """Opening it would wait for a writer that never comes."""
    os.mkfifo(tmp_path / "LATEST")
    store = DirectoryStore(tmp_path)
    for look in (store.size_bytes, lambda key: next(iter(store.stream(key)))):
        with pytest.raises(CheckpointCorrupt, match="LATEST is no file"):
            look("LATEST")
