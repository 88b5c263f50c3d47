# SPDX-License-Identifier: Apache-2.0
"""Whole drills with real daemons and trainers as people write them: those that pass, and those that must not.

The trainers are a few lines each, so that a drill takes seconds; the one with torch is ours.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import sys
import tempfile
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import boto3
import pytest
from moto.server import ThreadedMotoServer

from spotwatch.drill import Drill, Outcome, Timeline, cloud_document, make_plan, run_drill
from spotwatch.drill.machine import wait_until

pytestmark = pytest.mark.timeout(180)  # processes that import much, on cores that others use too

LIBRARY = """
import os, sys, time
from spotwatch.train import Checkpointer

class Counter:
    n = 0
    def state_dict(self): return {"n": self.n}
    def load_state_dict(self, state): self.n = state["n"]

counter = Counter()
ck = Checkpointer("file:///nowhere", run_id="the-real-run", environ=ENVIRON)
ck.track(counter=counter)
step = ck.resume()
pause = 0.0 if step else 0.02
with ck:
    while step < TOTAL:
        time.sleep(pause)
        counter.n += 1
        step += 1
        if ck.step(step):
            break
assert counter.n == step
raise SystemExit(ck.exit_code)
"""

FLAG_AND_SIGNAL = """
import os, pathlib, signal, sys, time, urllib.parse
told = []
signal.signal(signal.SIGTERM, lambda *_: told.append(1))
flag = os.path.join(os.environ["SPOTWATCH_RUNTIME_DIR"], "checkpoint-now")
store = pathlib.Path(os.environ["SPOTWATCH_CHECKPOINT_URL"], os.environ["SPOTWATCH_RUN_ID"])
store.mkdir(parents=True, exist_ok=True)
saved = store / "step"
step = int(saved.read_text()) if saved.exists() else 0
pause = 0.0 if step else 0.02
while step < TOTAL:
    time.sleep(pause)
    step += 1
    if os.path.exists(flag):
        saved.write_text(str(step))
        os.remove(flag)
    if told:
        saved.write_text(str(step))
        sys.exit(75)
"""

IGNORES_EVERYTHING = """
import signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
while True:
    time.sleep(1)
"""

EXITS_WITHOUT_SAVING = """
import signal, sys, time
signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
while True:
    time.sleep(1)
"""


@pytest.fixture
def scratch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Let drills take place here, and see that they leave nothing, whatever became of them."""
    folder = tmp_path / "scratch"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    yield folder
    for left in _entries(folder):
        assert [path.name for path in left.iterdir()] == ["logs"]


async def notice_after_seconds() -> float:
    """Return when a trainer that reports nothing has surely begun: some starts of Python, as long as now."""
    began = time.monotonic()
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", "import pathlib, urllib.parse")
    await process.wait()
    return 0.5 + 5 * (time.monotonic() - began)


async def drill(cloud: str, script: str, tmp_path: Path, **options: Any) -> tuple[Outcome, Path | None]:
    """Drill a script on one cloud."""
    path = tmp_path / "train.py"
    # AWS tells the time in whole seconds: its window must have room for that.
    window_seconds = 5.0 if cloud == "aws" else 2.5
    # Half a minute of steps, so that no slow machine is through before the stop; machine 2 hurries.
    total_steps = str(round(30 / 0.02))
    text = textwrap.dedent(script).replace("ENVIRON", "None").replace("TOTAL", total_steps)
    path.write_text(text, encoding="utf-8")
    wanted = Drill(
        clouds=[cloud],
        plan=make_plan(window_seconds, [cloud]),
        command=(sys.executable, str(path)),
        notice_after_seconds=50.0 if "Checkpointer" in script else await notice_after_seconds(),
        limit_seconds=60,
        **options,
    )
    (outcome,), logs = await run_drill(wanted, Timeline(None))
    return outcome, logs


@pytest.mark.parametrize(("cloud", "orders"), [("aws", ["flush", "stop"]), ("azure", ["stop"])])
async def test_a_trainer_with_the_library(
    cloud: str, orders: list[str], tmp_path: Path, scratch: Path
) -> None:
    """It is told, saves in the drill's store, and the same command goes on with no step lost."""
    outcome, logs = await drill(cloud, LIBRARY, tmp_path)
    got = cloud_document(outcome)
    assert (got["verdict"], got["problems"]) == ("pass", [])
    assert (got["first_exit_code"], got["final_exit_code"], got["steps_lost"]) == (75, 0, 0)
    assert got["orders"] == [{"do": do, "answer": "durable"} for do in orders]
    assert set(got["unknown"]) == {"steps_executed_twice", "bit_identical"}
    assert logs is None
    assert _entries(scratch) == []


async def test_a_script_that_knows_only_flag_and_signal(tmp_path: Path, scratch: Path) -> None:
    """It passes by its exit codes; what it cannot tell is null and named."""
    outcome, _ = await drill("digitalocean", FLAG_AND_SIGNAL, tmp_path)
    got = cloud_document(outcome)
    assert (got["verdict"], got["problems"]) == ("pass", [])
    assert (got["first_exit_code"], got["final_exit_code"]) == (75, 0)
    assert got["steps_lost"] is None
    assert {"steps_lost", "bit_identical", "notice_to_saved_seconds", "resume_seconds"} <= set(got["unknown"])


@pytest.mark.parametrize("cloud", ["aws", "gcp"])
async def test_a_trainer_that_ignores_everything(cloud: str, tmp_path: Path, scratch: Path) -> None:
    """It is killed with its machine, and the drill fails; its logs are kept."""
    outcome, logs = await drill(cloud, IGNORES_EVERYTHING, tmp_path)
    got = cloud_document(outcome)
    assert (got["verdict"], got["first_exit_code"], got["final_exit_code"]) == ("fail", 137, None)
    assert "the trainer was still running when its machine was taken away" in got["problems"]
    assert got["notice_to_order_seconds"] < got["notice_to_order_limit_seconds"]
    assert logs is not None
    assert (logs / f"{cloud}-1-daemon.log").stat().st_size


async def test_a_trainer_that_exits_without_saving(tmp_path: Path, scratch: Path) -> None:
    """An exit at the signal proves nothing: without the code of a durable save the drill fails."""
    outcome, _ = await drill("gcp", EXITS_WITHOUT_SAVING, tmp_path)
    got = cloud_document(outcome)
    assert (got["verdict"], got["first_exit_code"], got["final_exit_code"]) == ("fail", 0, None)
    assert "was stopped and its save is durable" in got["problems"][0]
    assert "nothing was saved" in got["unknown"]["final_exit_code"]


async def test_a_trainer_that_saves_elsewhere(tmp_path: Path, scratch: Path) -> None:
    """A save outside the drill's run may touch a real one: broken off at once, and said where it went."""
    elsewhere = tmp_path / "real"
    names = "{'SPOTWATCH_RUNTIME_DIR': os.environ['SPOTWATCH_RUNTIME_DIR']}"
    script = LIBRARY.replace("ENVIRON", names).replace("file:///nowhere", str(elsewhere))
    outcome, _ = await drill("gcp", script, tmp_path)
    (problem,) = cloud_document(outcome)["problems"]
    assert f"the trainer saved to file://{elsewhere}/the-real-run/step-" in problem
    assert (elsewhere / "the-real-run" / "LATEST").exists()


async def test_a_trainer_that_ends_before_the_notice(tmp_path: Path, scratch: Path) -> None:
    """Nothing is rehearsed with a trainer that does not start, and its log is kept."""
    outcome, logs = await drill("gcp", "raise SystemExit('no data here')", tmp_path)
    assert cloud_document(outcome)["problems"] == ["the trainer ended with 1 before any notice came"]
    assert logs is not None
    assert "no data here" in (logs / "gcp-1-trainer.log").read_text()


async def test_only_what_the_drill_made_is_removed(tmp_path: Path, scratch: Path) -> None:
    """In a store that other runs use too, theirs stay, byte for byte."""
    store = tmp_path / "store"
    other = store / "sweep-01" / "step-000000007-a" / "manifest.json"
    other.parent.mkdir(parents=True)
    other.write_text("{}")
    outcome, _ = await drill("gcp", LIBRARY, tmp_path, store_url=str(store))
    assert cloud_document(outcome)["verdict"] == "pass"
    assert [path.name for path in store.iterdir() if any(p.is_file() for p in path.rglob("*"))] == [
        "sweep-01"
    ]
    assert other.read_text() == "{}"


async def test_a_bucket_that_others_use(
    tmp_path: Path, scratch: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same holds in S3, and both machines find the bucket by the user's own variables."""
    # A bucket of its own: every moto server of one process shows the same buckets.
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    for name, value in (
        ("AWS_ACCESS_KEY_ID", "testing"),
        ("AWS_SECRET_ACCESS_KEY", "testing"),
        ("AWS_DEFAULT_REGION", "us-east-1"),
        ("AWS_ENDPOINT_URL", f"http://{host}:{port}"),
    ):
        monkeypatch.setenv(name, value)
    try:
        client = boto3.session.Session().client("s3")
        client.create_bucket(Bucket="drill-bucket")
        client.put_object(Bucket="drill-bucket", Key="drills/sweep-01/LATEST", Body=b"{}")
        outcome, _ = await drill("gcp", LIBRARY, tmp_path, store_url="s3://drill-bucket/drills")
        left = client.list_objects_v2(Bucket="drill-bucket")["Contents"]
    finally:
        server.stop()
    assert cloud_document(outcome)["problems"] == []
    assert [entry["Key"] for entry in left] == ["drills/sweep-01/LATEST"]


async def test_broken_off(tmp_path: Path, scratch: Path) -> None:
    """A drill that is cancelled leaves no process and no file."""
    running = asyncio.create_task(drill("gcp", IGNORES_EVERYTHING, tmp_path))
    trainer = str(tmp_path / "train.py").encode()
    await wait_until(lambda: _runs(trainer), 60, "the trainer to run")
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert not _runs(trainer)
    assert _entries(scratch) == []


@pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="torch is not installed")
async def test_our_own_trainer(scratch: Path) -> None:
    """With torch, dropout and a schedule: every bit of the interrupted run equals the uninterrupted one."""
    wanted = Drill(clouds=["gcp"], plan=make_plan(5.0, ["gcp"]), limit_seconds=60)
    (outcome,), logs = await run_drill(wanted, Timeline(None))
    got = cloud_document(outcome)
    assert (got["verdict"], got["problems"], got["unknown"]) == ("pass", [], {})
    assert (got["steps_lost"], got["steps_executed_twice"], got["steps_never_executed"]) == (0, 0, 0)
    assert got["bit_identical"] is True
    assert logs is None


def _entries(folder: Path) -> list[Path]:
    return list(folder.iterdir())


def _runs(part: bytes) -> bool:
    """Tell whether a process has `part` in its command line."""
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            if part in path.read_bytes().split(b"\0"):
                return True
    return False
