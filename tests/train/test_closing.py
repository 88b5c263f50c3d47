# SPDX-License-Identifier: Apache-2.0
"""What a run has started for its store ends with the run, not with the program."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

from spotwatch.errors import ConfigError
from spotwatch.testing import MemoryStore
from spotwatch.train import Checkpointer, life
from spotwatch.train.stores.bulk_obstore import ObstoreBulk
from spotwatch.train.stores.pacing import Pace
from spotwatch.train.stores.s3 import S3Store
from spotwatch.train.stores.s3_bucket import Bucket
from spotwatch.train.stores.uploader import ProcessBulk
from tests.leaks import open_descriptors, open_sockets

from .bulk_help import PART_BYTES, crcs_of, is_gone, nothing, shared, wait_for
from .conftest import S3, Counter, train
from .s3_stand_in import S3StandIn

pytestmark = [pytest.mark.timeout(90), pytest.mark.usefixtures("handlers_come_back")]


def threads() -> set[str]:
    """Return the threads that are ours, by name."""
    return {thread.name for thread in threading.enumerate() if thread.name.startswith("spotwatch")}


@pytest.fixture
def small_is_large(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the uploader process take bodies of any size."""
    monkeypatch.setattr(ProcessBulk.__init__, "__kwdefaults__", {"least_bytes": 1})


@pytest.fixture
def options(s3: S3, environ: dict[str, str], run: str) -> dict[str, Any]:
    """Return what makes a Checkpointer on S3 whose bodies go through the uploader process."""
    return {
        "url": s3.url,
        "run_id": run,
        "environ": environ | s3.environ | {"SPOTWATCH_UPLOADER": "boto3"},
        "blocking": True,
        "every_steps": 1,
    }


@pytest.fixture
def run(request: pytest.FixtureRequest) -> str:
    """Return the id of a run that no other test has."""
    return str(request.node.name)


def tracked(options: dict[str, Any]) -> tuple[Checkpointer, Counter]:
    """Return a Checkpointer with a trainer."""
    ck, counter = Checkpointer(**options), Counter()
    ck.track(counter=counter)
    return ck, counter


def uploader_of(ck: Checkpointer) -> int:
    """Return the process that is at work for it."""
    store = ck._life._store.store
    assert isinstance(store, S3Store)
    assert isinstance(store._bulk, ProcessBulk)
    assert store._bulk._process is not None
    return store._bulk._process._child.pid


def test_nothing_is_left_after_the_loop(small_is_large: None, options: dict[str, Any]) -> None:
    """No thread, no process, no connection; and once the Checkpointer is forgotten, no descriptor."""
    before = open_sockets(), threads(), open_descriptors()
    ck, counter = tracked(options)
    step = ck.resume()
    with ck:
        for step in range(1, 4):
            counter.train(step)
            ck.step(step)
        pid = uploader_of(ck)
        assert not is_gone(pid)
        assert open_sockets() - before[0]
    assert is_gone(pid)
    wait_for(lambda: not open_sockets() - before[0] and not threads() - before[1])
    del ck
    wait_for(lambda: not open_descriptors() - before[2])


def test_a_life_after_the_first_opens_it_again(small_is_large: None, options: dict[str, Any]) -> None:
    """Resumed again it saves again, and closes again; in between a save is refused."""
    ck, counter = tracked(options)
    train(ck, counter, 2)
    with pytest.raises(ConfigError, match="call resume"):
        ck.save(3)
    assert ck.resume() == 2
    with ck:
        counter.train(2)
        ck.step(3)
        pid = uploader_of(ck)
    assert ck.exit_code == 0
    assert is_gone(pid)
    ck._life.registry.store.close()
    last, _ = tracked(options)
    assert last.resume() == 3
    with last:
        pass


def test_a_store_that_was_given_open_stays_open(environ: dict[str, str]) -> None:
    """Whoever opened it closes it."""

    class Given(MemoryStore):
        closed = 0

        def close(self) -> None:
            self.closed += 1

    store = Given()
    ck, counter = tracked({"url": store, "run_id": "run", "environ": environ})
    train(ck, counter, 2)
    assert ck.exit_code == 0
    assert store.closed == 0
    assert any(key.startswith("step-000000002") for key in store.objects)


def test_an_upload_that_hangs_holds_nobody_up(
    small_is_large: None,
    options: dict[str, Any],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Closing waits for what is under way, but the program does not wait for closing."""
    monkeypatch.setattr(life, "_CLOSE_SECONDS", 0.05)
    ck, counter = tracked(options)
    train(ck, counter, 1)
    store = ck._life._store.store
    assert isinstance(store, S3Store)
    assert isinstance(store._bulk, ProcessBulk)
    with store._bulk._lock:
        ck._end("failed")
        assert "the store is still at work after 0 s" in caplog.text
    wait_for(lambda: not any("close" in thread.name for thread in threading.enumerate()))


def test_a_run_in_a_directory_ends_without_a_rest(environ: dict[str, str], tmp_path: Path) -> None:
    """The same count for the simplest store."""
    before = threads(), open_descriptors()
    ck, counter = tracked({"url": tmp_path / "store", "run_id": "run", "environ": environ, "every_steps": 1})
    train(ck, counter, 3)
    assert not threads() - before[0]
    del ck
    assert not open_descriptors() - before[1]


@pytest.mark.usefixtures("made_up_keys")
def test_obstore_lets_its_connections_go(server: S3StandIn) -> None:
    """Twice is harmless, and the next upload makes new ones."""
    body = shared(9 * PART_BYTES)
    bulk = ObstoreBulk(Bucket("bulk", {"endpoint_url": server.url}), Pace(None), retries=3)
    before = open_sockets()
    for key in ("one", "two"):
        assert bulk.upload(key, body, nothing) == crcs_of(body)
        assert open_sockets() - before
        bulk.close()
        bulk.close()
        wait_for(lambda: not open_sockets() - before)
    assert server.objects == {"one": bytes(body.view), "two": bytes(body.view)}
