# SPDX-License-Identifier: Apache-2.0
"""What the tests of `spotwatch checkpoints` share: real runs to look at, damaged by hand, and the command."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from click.testing import CliRunner

from spotwatch.cli import cli
from spotwatch.errors import ConfigError
from spotwatch.train import Checkpointer
from spotwatch.train.lease.history import Life
from spotwatch.train.lease.lease import Lease
from spotwatch.train.lease.owner import Owner
from spotwatch.train.parts import crc32
from spotwatch.train.registry.manifest import LATEST, MANIFEST, RANK_FILE, Latest, Manifest
from spotwatch.train.registry.registry import Registry
from spotwatch.train.store import Store, open_store

RUN = "run"
STRANGER = Owner(
    writer="far:4711:abc", host="far", pid=4711, boot_id="another", pid_namespace=1, start_ticks=1
)


@dataclass(frozen=True)
class Told:
    """What the command said."""

    code: int
    out: str
    err: str

    @property
    def document(self) -> Any:
        """Return the one JSON document on standard output."""
        document = json.loads(self.out)
        assert document["version"] == 1
        return document


def checkpoints(*words: str | Path, env: Mapping[str, str | None] | None = None) -> Told:
    """Call `spotwatch checkpoints`, with no terminal."""
    result = CliRunner().invoke(cli, ["checkpoints", *map(str, words)], env=env)
    if isinstance(result.exception, ConfigError):
        return Told(2, result.stdout, str(result.exception))
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return Told(result.exit_code, result.stdout, result.stderr)


class Weights:
    """A trainer whose state has some bytes to damage."""

    def __init__(self) -> None:
        self.state: dict[str, Any] = {"words": ["one", "two"]}

    def state_dict(self) -> dict[str, Any]:
        """Return a thousand numbers."""
        import torch  # noqa: PLC0415 - slow, and not every test here needs it

        return {**self.state, "weight": torch.arange(1000, dtype=torch.float32), "bias": torch.ones(10, 2)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take it back."""
        self.state = {"words": state["words"]}


def train(url: str | Path, until: int, *, run_id: str = RUN, keep: int = 10, sick: int = 0) -> None:
    """Save each step from where the run stands on, through the front door; `sick` is an unhealthy step."""
    ck = Checkpointer(
        url, run_id=run_id, keep=keep, every_steps=1, blocking=True, environ={}, patience_seconds=0.0
    )
    ck.track(weights=Weights())
    step = ck.resume()
    with ck:
        while step < until:
            step += 1
            ck.step(step, healthy=step != sick)


def directory_of(root: Path, step: int) -> Path:
    """Return the checkpoint directory of a step."""
    (found,) = root.glob(f"step-{step:09d}-*")
    return found


def file_of(root: Path, step: int) -> Path:
    """Return the only file of a checkpoint."""
    return directory_of(root, step) / RANK_FILE.format(0)


def flip(path: Path, at: int) -> None:
    """Turn one bit over."""
    body = bytearray(path.read_bytes())
    body[at] ^= 8
    path.write_bytes(bytes(body))


def everything(root: Path) -> dict[str, tuple[int, bytes]]:
    """Return every file below, to compare."""
    return {
        path.relative_to(root).as_posix(): (path.stat().st_mtime_ns, path.read_bytes())
        for path in sorted(root.rglob("*"))
        if path.is_file()
    }


def leave_unfinished(root: Path, step: int, generation: int) -> Path:
    """Leave what a save that died has left."""
    path = root / f"step-{step:09d}-g{generation}-dead"
    path.mkdir()
    (path / RANK_FILE.format(0)).write_bytes(b"half of it")
    return path


def seal(root: Path, manifest: Manifest) -> None:
    """Write a manifest in the place of another, and let LATEST name it."""
    body = manifest.to_bytes()
    (root / manifest.dir / MANIFEST).write_bytes(body)
    latest = Latest(
        dir=manifest.dir, manifest_crc=crc32(body), step=manifest.step, generation=manifest.generation
    )
    (root / LATEST).write_bytes(latest.to_bytes())


def manifest_of(root: Path, step: int) -> Manifest:
    """Read a manifest."""
    return Manifest.from_bytes((directory_of(root, step) / MANIFEST).read_bytes())


def store_of(root: Path) -> Store:
    """Open the store of a run."""
    return open_store(str(root), "", {})


def registry_of(root: Path) -> Registry:
    """Return the registry of a run."""
    return Registry(store_of(root), RUN)


@contextlib.contextmanager
def held_by_a_stranger(root: Path, *, ttl_seconds: float = 3.0, is_renewed: bool = True) -> Iterator[Lease]:
    """Let a process of another machine hold the lease; unrenewed, it has died without a word."""
    lease = Lease(store_of(root), STRANGER, ttl_seconds=ttl_seconds, renew_seconds=ttl_seconds / 20)
    lease.take(lambda: None, lambda _: None)
    if is_renewed:
        lease.start()
    try:
        yield lease
    finally:
        lease.stop()


def lost(seconds: float) -> Life:
    """Return a life that ended without a word."""
    return Life(seconds, "lost")
