# SPDX-License-Identifier: Apache-2.0
"""What the trainer's tests share: a run without torch, a runtime directory, a daemon's hand."""

from __future__ import annotations

import random
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import boto3
import pytest
from moto.server import ThreadedMotoServer

from spotwatch.clock import read_boot_id
from spotwatch.errors import StoreError
from spotwatch.handshake import FLAG, Order, Status
from spotwatch.model import Do
from spotwatch.safe_files import create_exclusively, write_atomically
from spotwatch.train import Checkpointer
from spotwatch.train.parts import Body
from spotwatch.train.signals import STOPPING
from spotwatch.train.store import OnPart
from spotwatch.train.stores.directory import DirectoryStore

from .bulk_help import use_keys
from .done_help import New, maker
from .faulty import FaultyStore
from .s3_proxy import S3Proxy, proxy_to
from .s3_stand_in import S3StandIn
from .s3_stores import be_quick
from .trainer_processes import Trainers


class Counter:
    """The smallest trainer: its state says which steps were taken, in which order, with which luck."""

    def __init__(self) -> None:
        self.steps: list[int] = []
        self.luck: list[float] = []

    def train(self, step: int) -> None:
        """Take one step."""
        self.steps.append(step)
        self.luck.append(random.random())

    def state_dict(self) -> dict[str, Any]:
        """Return everything."""
        return {"steps": list(self.steps), "luck": list(self.luck)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take everything back."""
        self.steps, self.luck = state["steps"], state["luck"]


class Daemon:
    """Writes the daemon's files by hand, as the daemon does."""

    def __init__(self, runtime_dir: Path) -> None:
        self.runtime_dir = runtime_dir

    def order(self, do: Do, seq: int, *, boot_id: str | None = None, why: str = "test") -> None:
        """Put an order in force."""
        order = Order(boot_id=boot_id or read_boot_id(), seq=seq, do=do, why=why)
        write_atomically(self.runtime_dir / "order.json", order.to_bytes())

    def flag(self, seq: int, *, boot_id: str | None = None) -> bool:
        """Raise the flag with an order in its body."""
        order = Order(boot_id=boot_id or read_boot_id(), seq=seq, do=Do.FLUSH)
        return create_exclusively(self.runtime_dir / FLAG, order.to_bytes())

    def status(self, run_id: str = "run") -> Status:
        """Read what the trainer says."""
        return Status.from_bytes((self.runtime_dir / "status" / f"{run_id}.json").read_bytes())

    def wait(self, wanted: Callable[[Status], bool], run_id: str = "run", seconds: float = 10.0) -> Status:
        """Wait until the status is as wanted."""
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            if (self.runtime_dir / "status" / f"{run_id}.json").exists() and wanted(self.status(run_id)):
                return self.status(run_id)
            time.sleep(0.02)
        raise AssertionError(f"still {self.status(run_id)}")


Make = Callable[..., tuple[Checkpointer, Counter]]


@pytest.fixture
def runtime_dir(tmp_path: Path) -> Path:
    """Return a runtime directory that can be trusted."""
    path = tmp_path / "runtime"
    path.mkdir(mode=0o700)
    return path


@pytest.fixture
def environ(runtime_dir: Path) -> dict[str, str]:
    """Return an environment that leads to no daemon but ours."""
    return {"SPOTWATCH_RUNTIME_DIR": str(runtime_dir)}


@pytest.fixture
def daemon(runtime_dir: Path) -> Daemon:
    """Return the daemon's hand."""
    return Daemon(runtime_dir)


@pytest.fixture
def store() -> FaultyStore:
    """Return an empty store."""
    return FaultyStore()


@pytest.fixture
def new(store: FaultyStore, environ: dict[str, str]) -> New:
    """Return a maker of done-lists on one store, as after a restart."""
    return maker(store, environ)


@pytest.fixture
def make(tmp_path: Path, environ: dict[str, str]) -> Iterator[Make]:
    """Return a maker of Checkpointers on one store, each with a fresh trainer, as after a restart."""
    made: list[Checkpointer] = []

    def maker(url: Any = None, **options: Any) -> tuple[Checkpointer, Counter]:
        ck = Checkpointer(
            tmp_path / "store" if url is None else url,
            run_id="run",
            environ=environ,
            **{"patience_seconds": 0.0, "blocking": True, **options},
        )
        counter = Counter()
        ck.track(counter=counter)
        made.append(ck)
        return ck, counter

    yield maker
    for ck in made:
        ck._end("failed")


def train(ck: Checkpointer, counter: Counter, until: int) -> int:
    """Run the loop of the documentation and return the step at which it was left."""
    step = ck.resume()
    with ck:
        while step < until:
            counter.train(step)
            step += 1
            if ck.step(step):
                break
    return step


def dirs(tmp_path: Path) -> list[str]:
    """Return the checkpoint directories of the run."""
    return sorted(path.name for path in (tmp_path / "store" / "run").glob("step-*"))


class S3:
    """A bucket on a real HTTP server on loopback."""

    url = "s3://bucket/checkpoints"
    spaces_url = "spaces:///checkpoints"

    def __init__(self, endpoint: str) -> None:
        self.environ = {
            "AWS_ENDPOINT_URL": endpoint,
            "SPACES_ENDPOINT": endpoint,
            "SPACES_KEY": "testing",
            "SPACES_SECRET": "testing",
            "SPACES_BUCKET": "bucket",
        }
        self.client = boto3.session.Session().client("s3", endpoint_url=endpoint)
        self.client.create_bucket(Bucket="bucket")


@pytest.fixture(scope="session")
def s3() -> Iterator[S3]:
    """Return a bucket that lives as long as the tests; each test takes a run of its own."""
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AWS_ACCESS_KEY_ID", "testing")
        patch.setenv("AWS_SECRET_ACCESS_KEY", "testing")
        patch.setenv("AWS_DEFAULT_REGION", "us-east-1")
        server.start()
        host, port = server.get_host_and_port()
        yield S3(f"http://{host}:{port}")
        server.stop()


@pytest.fixture
def quick_s3(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let S3 stores wait little between tries, and send small parts."""
    be_quick(monkeypatch)


@pytest.fixture
def proxy(s3: S3) -> Iterator[S3Proxy]:
    """Return a proxy in front of the S3 server."""
    with proxy_to(s3.environ["AWS_ENDPOINT_URL"]) as made:
        yield made


@pytest.fixture
def server() -> Iterator[S3StandIn]:
    """Return an S3 server of this process, which works until told otherwise."""
    with S3StandIn() as stand_in:
        yield stand_in


@pytest.fixture
def made_up_keys(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Let boto3 find two made-up keys and nothing else."""
    use_keys(monkeypatch, tmp_path)


@pytest.fixture
def trainers(tmp_path: Path, runtime_dir: Path) -> Iterator[Trainers]:
    """Return a starter of trainers that leaves none behind."""
    trainers = Trainers(tmp_path, runtime_dir)
    yield trainers
    for process in trainers.started:
        if process.poll() is None:
            process.kill()
        process.wait()
        if process.stdout is not None:
            process.stdout.close()


class Broken(DirectoryStore):
    """A store that refuses so many writes."""

    refusals = 0

    def put(self, key: str, body: bytes) -> None:
        """Refuse, or store."""
        self._refuse()
        super().put(key, body)

    def upload(self, key: str, body: Body, on_part: OnPart) -> tuple[str, ...]:
        """Refuse, or store."""
        self._refuse()
        return super().upload(key, body, on_part)

    def _refuse(self) -> None:
        if self.refusals:
            self.refusals -= 1
            raise StoreError("the bucket is on fire")


@pytest.fixture
def handlers_come_back() -> Iterator[None]:
    """Check that signals are given back, and give them back."""
    before = [signal.getsignal(number) for number in STOPPING]
    yield
    after = [signal.getsignal(number) for number in STOPPING]
    for number, handler in zip(STOPPING, before, strict=True):
        signal.signal(number, handler)
    # Ignored when the process was told to leave: told again, it must not die of it.
    assert after in (before, [signal.SIG_IGN, signal.SIG_IGN, before[2]])
