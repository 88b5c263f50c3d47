# SPDX-License-Identifier: Apache-2.0
"""gs:// and az:// by obstore: the contract of a store, over a store in memory and a stand-in of Google's."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from obstore.store import LocalStore, MemoryStore

from spotwatch.errors import CheckpointCorrupt, ConfigError, RunTaken, StoreConflict, StoreError, StoreMissing
from spotwatch.train.store import Entry
from spotwatch.train.stores.objects import ObjectStore, open_object
from spotwatch.train.stores.pacing import Pace
from tests.train.bulk_help import PART_BYTES, crcs_of, nothing, shared
from tests.train.s3_stand_in import S3StandIn, refusal


def google(server: S3StandIn, patch: pytest.MonkeyPatch, tmp_path: Path) -> ObjectStore:
    """Return a gs:// store whose requests go to the stand-in."""
    account = tmp_path / "account.json"
    facts = {"gcs_base_url": server.url, "disable_oauth": True, "client_email": "", "private_key": ""}
    account.write_text(json.dumps({**facts, "private_key_id": ""}), encoding="utf-8")
    environ = {"GOOGLE_SERVICE_ACCOUNT": str(account), "GOOGLE_BASE_URL": server.url}
    for name, value in environ.items():
        patch.setenv(name, value)
    return open_object(urlsplit("gs://bucket/checkpoints"), "run", environ, Pace(None))


@pytest.fixture(params=["memory", "gs"])
def store(
    request: pytest.FixtureRequest, server: S3StandIn, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> ObjectStore:
    """Return each store that enforces conditions."""
    if request.param == "gs":
        return google(server, monkeypatch, tmp_path)
    return ObjectStore(MemoryStore, "checkpoints/run", "gs://bucket")


def test_a_small_object_comes_back_with_a_version(store: ObjectStore) -> None:
    """Put, get, read, size, and the limit on what is read."""
    store.put("LATEST", b"one")
    assert store.get("LATEST", most_bytes=3) == b"one"
    assert store.size_bytes("LATEST") == 3
    first = store.read("LATEST", most_bytes=3)[1]
    store.put("LATEST", b"two")
    body, second = store.read("LATEST", most_bytes=3)
    assert body == b"two"
    assert first != second
    with pytest.raises(CheckpointCorrupt, match="gs://bucket/checkpoints/run/LATEST has more than 2 bytes"):
        store.get("LATEST", most_bytes=2)


def test_what_is_not_there_is_missing(store: ObjectStore) -> None:
    """Every way of reading says so; deleting it is no error."""
    with pytest.raises(StoreMissing, match="cannot read gs://bucket/checkpoints/run/none"):
        store.get("none", most_bytes=1)
    with pytest.raises(StoreMissing):
        store.size_bytes("none")
    with pytest.raises(StoreMissing):
        store.read_into("none", 0, memoryview(bytearray(1)))
    store.delete("none")


def test_a_conditional_write_replaces_only_what_was_read(store: ObjectStore) -> None:
    """Create once; replace by the version read; both refused afterwards, and never on what is gone."""
    first = store.put_if("LEASE", b"a", None)
    with pytest.raises(StoreConflict, match="LEASE was written by another"):
        store.put_if("LEASE", b"b", None)
    second = store.put_if("LEASE", b"c", first)
    assert store.read("LEASE", most_bytes=9) == (b"c", second)
    with pytest.raises(StoreConflict):
        store.put_if("LEASE", b"d", first)
    store.delete("LEASE")
    with pytest.raises(StoreConflict):
        store.put_if("LEASE", b"e", second)


def test_a_conflict_with_our_own_bytes_is_an_earlier_try_that_succeeded(store: ObjectStore) -> None:
    """Its answer was lost on the way; the object is ours."""
    version = store.put_if("LEASE", b"token 1", None)
    assert store.put_if("LEASE", b"token 1", None) == version


def test_the_probe_finds_that_conditions_are_enforced_and_leaves_nothing(store: ObjectStore) -> None:
    """It asks once."""
    assert store.is_conditional
    assert store.is_conditional
    assert list(store.list()) == []


def test_a_store_that_knows_no_conditions_is_not_conditional(tmp_path: Path) -> None:
    """A directory by obstore cannot replace by version."""
    assert not ObjectStore(lambda: LocalStore(tmp_path), "run", "gs://bucket").is_conditional


@pytest.mark.parametrize("size", [0, 10, PART_BYTES, 5 * PART_BYTES + 1])
def test_a_large_body_arrives_bit_by_bit(store: ObjectStore, size: int) -> None:
    """One part or many, the object and the checksums; and a range of it."""
    body = shared(size) if size else shared(1)
    body = type(body)(body.view[:size], PART_BYTES)
    assert store.upload("dir/file", body, nothing) == crcs_of(body)
    assert store.get("dir/file", most_bytes=size) == bytes(body.view)
    if size > 10:
        target = bytearray(size - 10)
        store.read_into("dir/file", 7, memoryview(target))
        assert target == body.view[7:-3]


def test_a_range_beyond_the_end_is_damage(store: ObjectStore) -> None:
    """The manifest says that there is more."""
    store.put("file", b"x" * 100)
    with pytest.raises(CheckpointCorrupt, match="ends at byte 100, too early"):
        store.read_into("file", 90, memoryview(bytearray(20)))
    with pytest.raises(CheckpointCorrupt, match="ends before byte 200"):
        store.read_into("file", 200, memoryview(bytearray(20)))


def test_what_progress_raises_leaves_no_object(store: ObjectStore) -> None:
    """Also at the very end, when it is whole."""
    body = shared(4 * PART_BYTES)

    def lost(sent_bytes: int) -> None:
        if sent_bytes == body.size_bytes:
            raise RunTaken("another has gone on")

    with pytest.raises(RunTaken):
        store.upload("file", body, lost)
    assert list(store.list()) == []


def test_the_listing_is_of_this_run_alone(store: ObjectStore) -> None:
    """Keys below the root, with their sizes; a run whose name begins alike is another."""
    store.put("a", b"1")
    store.put("dir/b", b"22")
    other = ObjectStore(lambda: store._store, "checkpoints/run-2", "gs://bucket")
    other.put("c", b"333")
    assert sorted(store.list(), key=lambda entry: entry.key) == [Entry("a", 1), Entry("dir/b", 2)]
    assert list(other.list()) == [Entry("c", 3)]
    assert store.abort_uploads() == 0


def test_a_refusal_names_the_object_and_what_the_store_said(
    server: S3StandIn, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The code and message, for whatever was asked."""
    store = google(server, monkeypatch, tmp_path)
    server.fault = lambda _: refusal(403, "AccessDenied", "no such permission")
    asked: list[tuple[str, Any]] = [
        ("write", lambda: store.put("key", b"")),
        ("write", lambda: store.put_if("key", b"", None)),
        ("write", lambda: store.upload("key", shared(3 * PART_BYTES), nothing)),
        ("read", lambda: store.get("key", most_bytes=1)),
        ("read", lambda: store.read_into("key", 0, memoryview(bytearray(1)))),
        ("delete", lambda: store.delete("key")),
    ]
    for deed, ask in asked:
        with pytest.raises(
            StoreError, match=f"cannot {deed} gs://bucket/checkpoints/run/key: AccessDenied no such"
        ):
            ask()
    with pytest.raises(StoreError, match="cannot list gs://bucket/checkpoints/run: AccessDenied"):
        list(store.list())


def test_azure_without_an_account_is_told_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The name of the variable is in the message."""
    with pytest.raises(ConfigError, match="AZURE_STORAGE_ACCOUNT_NAME is not set; az:// needs it"):
        open_object(urlsplit("az://container/prefix"), "run", {}, Pace(None))


def test_an_account_that_is_none_is_told_at_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """What obstore cannot read is the user's to mend."""
    monkeypatch.setenv("GOOGLE_SERVICE_ACCOUNT", str(tmp_path / "none.json"))
    with pytest.raises(ConfigError, match=r"gs://bucket: .*; check the credentials"):
        open_object(urlsplit("gs://bucket/prefix"), "run", {}, Pace(None))


def test_the_root_is_the_url_with_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """As people know it."""
    environ = {"AZURE_STORAGE_ACCOUNT_NAME": "account"}
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_NAME", "account")
    store = open_object(urlsplit("az://container/a/b/"), "run", environ, Pace(None))
    assert store.url == "az://container/a/b/run"
