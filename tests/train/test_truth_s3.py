# SPDX-License-Identifier: Apache-2.0
"""The same promises over HTTP: published, damaged, gone on from, fenced and pruned in a bucket."""

from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import UTC, datetime

import pytest

from spotwatch.errors import RunTaken, StoreError
from spotwatch.train.parts import Held
from spotwatch.train.registry import download, inventory
from spotwatch.train.registry.manifest import LATEST, Manifest
from spotwatch.train.registry.registry import RANK_FILE, Registry
from spotwatch.train.registry.resume import Resume
from spotwatch.train.store import Store, open_store
from spotwatch.train.world import Alone

from .conftest import S3

_BUCKET = "truth"
_LEAST_PART_BYTES = 5 * 2**20
BODY = bytes(range(256)) * 40


class Run:
    """A run in a bucket, and a hand in the bucket; its lives share a client, for making one takes time."""

    def __init__(self, s3: S3, run_id: str) -> None:
        self._s3 = s3
        self.run_id = run_id
        self._store = self.open()

    def open(self, **environ: str) -> Store:
        """Open the store of the run."""
        return open_store(f"s3://{_BUCKET}/checkpoints", self.run_id, self._s3.environ | environ)

    def life(self, generation: int = 1) -> Registry:
        """Return a registry of a life of the run."""
        made = Registry(self._store, self.run_id)
        made.generation = generation
        return made

    def change(self, key: str, change: Callable[[bytes], bytes]) -> None:
        """Damage an object behind everybody's back."""
        where = {"Bucket": _BUCKET, "Key": f"checkpoints/{self.run_id}/{key}"}
        body = self._s3.client.get_object(**where)["Body"].read()
        self._s3.client.put_object(**where, Body=change(body))

    def delete(self, key: str) -> None:
        """Remove an object behind everybody's back."""
        self._s3.client.delete_object(Bucket=_BUCKET, Key=f"checkpoints/{self.run_id}/{key}")

    def resume(self, store: Store | None = None) -> tuple[int, Registry]:
        """Go on from the best checkpoint, and return its step and what now holds the run."""
        found = Registry(store or self._store, self.run_id)
        body = bytearray()

        def fetch(manifest: Manifest) -> None:
            (file,) = manifest.files
            body[:] = bytes(file.size_bytes)
            download.fetch(
                found.store,
                f"{manifest.dir}/{file.name}",
                file,
                memoryview(body),
                lambda: None,
                patience_seconds=0.0,
            )

        manifest = Resume(found, Alone(), 0.0, lambda: None).load(fetch, allow_fresh=False)
        assert manifest is not None
        assert body.startswith(BODY)
        return manifest.step, found


def _publish(on: Registry, step: int, body: bytes = BODY) -> Manifest:
    directory = on.new_dir(step)
    name = RANK_FILE.format(0)
    file = on.upload(directory, name, Held(memoryview(body), _LEAST_PART_BYTES), lambda sent: None)
    return on.publish(
        dir=directory,
        step=step,
        files=[file],
        state={name: {}},
        tensors=None,
        world_size=1,
        healthy=True,
        versions={},
        now=lambda: datetime.now(UTC),
    )


@pytest.fixture
def run(s3: S3, request: pytest.FixtureRequest) -> Run:
    """Return a run that nobody else uses."""
    s3.client.create_bucket(Bucket=_BUCKET)
    return Run(s3, f"run-{abs(hash(request.node.name))}")


def _file(manifest: Manifest) -> str:
    return f"{manifest.dir}/{RANK_FILE.format(0)}"


DAMAGES: dict[str, tuple[Callable[[Run, Manifest], None], int]] = {
    "none": (lambda run, newest: None, 20),
    "bit flip": (lambda run, newest: run.change(_file(newest), lambda b: b[:-1] + b"!"), 10),
    "truncated": (lambda run, newest: run.change(_file(newest), lambda b: b[:-1]), 10),
    "missing file": (lambda run, newest: run.delete(_file(newest)), 10),
    "missing manifest": (lambda run, newest: run.delete(f"{newest.dir}/manifest.json"), 10),
    "missing LATEST": (lambda run, newest: run.delete(LATEST), 20),
    "unreadable LATEST": (lambda run, newest: run.change(LATEST, lambda b: b[:-9]), 20),
    "dangling LATEST": (
        lambda run, newest: run.change(
            LATEST, lambda b: b.replace(newest.dir.encode(), b"step-000000020-g1-x")
        ),
        20,
    ),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_damage_in_a_bucket(run: Run, damage: str) -> None:
    """Each costs at most the checkpoint that it hit; the next save and the next start are as always."""
    life = run.life()
    _publish(life, 10)
    newest = _publish(life, 20)
    deed, wanted = DAMAGES[damage]
    deed(run, newest)
    step, found = run.resume()
    assert step == wanted
    after = _publish(found, 30)
    assert found.prune(3, after) == []
    assert run.resume()[0] == 30
    inventory.verify(found, after.dir)


def test_who_was_overtaken_stops_writing(run: Run) -> None:
    """The bucket itself refuses the pointer of an earlier life."""
    old = run.life()
    assert old.store.is_conditional
    _publish(old, 10)
    run.resume()
    with pytest.raises(RunTaken):
        _publish(old, 20)
    assert run.resume()[0] == 10


def test_of_many_that_claim_one_has_the_run(run: Run) -> None:
    """Eight machines that begin the same life at the same moment."""
    _publish(run.life(), 10)
    lives = [run.life(2) for _ in range(8)]
    won: list[str] = []

    def claim(life: Registry) -> None:
        try:
            life.claim()
        except RunTaken:
            return
        won.append(life.writer)

    threads = [threading.Thread(target=claim, args=(life,)) for life in lives]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    latest = run.life().latest()
    assert latest is not None
    assert won == [latest.writer]


def test_a_bucket_that_cannot_be_reached_is_no_empty_one(run: Run) -> None:
    """No route, no fresh start."""
    _publish(run.life(), 10)
    with pytest.raises(StoreError, match="tried once in 0 s"):
        run.resume(run.open(AWS_ENDPOINT_URL="http://127.0.0.1:9"))


def test_a_file_of_several_parts(run: Run) -> None:
    """What was sent in parts comes back in the same ones; damage in the second is named by its place."""
    life = run.life()
    body = BODY + bytes(_LEAST_PART_BYTES)
    newest = _publish(life, 10, body)
    assert [len(file.parts) for file in newest.files] == [2]
    assert run.resume()[0] == 10
    run.change(_file(newest), lambda b: b[:-1] + b"!")
    with pytest.raises(StoreError, match=rf"the {len(BODY)} bytes from {_LEAST_PART_BYTES} on"):
        run.resume()


def test_old_ones_go(run: Run) -> None:
    """The newest stay, whole."""
    life = run.life()
    for step in (10, 20, 30, 40):
        current = _publish(life, step)
    assert len(life.prune(2, current)) == 2
    assert [(row.step, row.state, row.role) for row in inventory.describe(life)] == [
        (40, "complete", "latest"),
        (30, "complete", "parent"),
    ]
