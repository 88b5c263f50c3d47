# SPDX-License-Identifier: Apache-2.0
"""A done-list in buckets of S3 servers that run as processes: kills, several workers, large outputs."""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from spotwatch.train import DoneList
from tests.real.s3_servers import BUCKET, S3Server, start
from tests.train.done_lives import Batch, batch

pytestmark = [pytest.mark.real, pytest.mark.timeout(300)]

_ITEMS = 2_000
_EVERY = 20


@pytest.fixture(scope="module", params=["weed", "moto", "rclone"])
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    """Return each server in turn."""
    with start(request.param, tmp_path_factory.mktemp(request.param)) as started:
        yield started


@pytest.fixture(autouse=True)
def _reader(server: S3Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let this process read what the workers write."""
    for name, value in server.environ().items():
        monkeypatch.setenv(name, value)


def _kill(made: Batch, pid: int, chance: random.Random) -> None:
    wanted = made.count() + chance.randint(1, 150)
    made.wait(lambda: made.count() >= wanted)
    time.sleep(chance.random() * 0.05)
    made.kill(pid)


def test_kills_in_a_bucket(server: S3Server, tmp_path: Path) -> None:
    """Two workers, ten kills: each output once, and no kill costs more than `every_items`."""
    chance = random.Random(9)
    with batch(
        tmp_path,
        f"s3://{BUCKET}/kills-{server.name}",
        environ=server.environ(),
        items=_ITEMS,
        every_items=_EVERY,
        seconds=0.001,
        shares=2 if server.is_conditional else 1,
    ) as made:
        workers = [made.start() for _ in range(2 if server.is_conditional else 1)]
        for _ in range(10):
            _kill(made, workers.pop(0), chance)
            workers.append(made.start())
        for pid in workers:
            made.end(pid, 0)
        made.expect_all(_ITEMS)
        assert max(made.redone().values()) <= _EVERY


def test_told_to_stop_in_a_bucket(server: S3Server, tmp_path: Path) -> None:
    """SIGTERM costs nothing."""
    with batch(
        tmp_path,
        f"s3://{BUCKET}/stops-{server.name}",
        environ=server.environ(),
        items=500,
        every_items=1000,
        seconds=0.001,
    ) as made:
        for wanted in (100, 300):
            pid = made.start()
            made.wait(lambda wanted=wanted: made.count() >= wanted)  # type: ignore[misc]
            os.kill(pid, signal.SIGTERM)
            made.end(pid, 75)
        made.run()
        made.expect_all(500)
        assert made.count() == 500


def test_wrong_keys_are_never_a_fresh_start(server: S3Server, tmp_path: Path) -> None:
    """A bucket that refuses ends the start."""
    if not server.checks_secrets:
        pytest.skip(f"{server.name} takes any key")
    with batch(
        tmp_path, f"s3://{BUCKET}/keys-{server.name}", environ=server.environ(), items=50, every_items=10
    ) as made:
        made.run()
        made.expect_all(50)
    with batch(
        tmp_path / "again",
        f"s3://{BUCKET}/keys-{server.name}",
        environ=server.environ(secret="wrong"),
        items=50,
        patience_seconds=1,
    ) as again:
        again.run(1)
        assert again.count() == 0
        assert "SignatureDoesNotMatch" in again.log.read_text() or "403" in again.log.read_text()


def test_large_outputs_in_a_bucket(server: S3Server) -> None:
    """Ten megabytes an item, and the text of a key that is no part of any name."""
    picture = random.Random(1).randbytes(10 * 2**20)
    done = DoneList(f"s3://{BUCKET}/large-{server.name}", run_id="batch", every_items=4)
    with done:
        for key in done.todo(["ключ/../\n", "b"]):
            done.add(key, picture)
    assert done.exit_code == 0
    found = dict(DoneList.outputs(f"s3://{BUCKET}/large-{server.name}", "batch"))
    assert found == {"ключ/../\n": picture, "b": picture}
