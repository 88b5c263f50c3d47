# SPDX-License-Identifier: Apache-2.0
"""Whole trainers as processes: killed at any moment, told by signals, in groups, at a terminal."""

from __future__ import annotations

import os
import pty
import random
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from spotwatch.model import Do
from spotwatch.train.registry.registry import Registry
from spotwatch.train.stores.directory import DirectoryStore

from .conftest import Daemon
from .trainer_processes import TRAINER, Trainers

EXAMPLE = Path(__file__).parents[2] / "examples" / "train.py"


def _wait(condition: Callable[[], object], seconds: float = 30.0) -> None:
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until, "it did not come to pass"
        time.sleep(0.01)


DYING = """
    class Dying(DirectoryStore):
        deeds = int(sys.argv[2])
        def die(self):
            self.deeds -= 1
            if not self.deeds:
                os.kill(os.getpid(), signal.SIGKILL)
        def deed(self, method, *args, **options):
            self.die()
            result = method(*args, **options)
            self.die()
            return result
        def put(self, *args): return self.deed(super().put, *args)
        def put_if(self, *args): return self.deed(super().put_if, *args)
        def upload(self, key, body, on_part):
            self.die()
            if self.deeds == 1:
                # The kernel has taken half of it when the machine goes.
                path = self.root / (key + ".half.tmp")
                path.parent.mkdir(parents=True, exist_ok=True)
                whole = b"".join(body.parts())
                path.write_bytes(whole[: len(whole) // 2])
            return self.deed(super().upload, key, body, on_part)
        def read(self, *args, **options): return self.deed(super().read, *args, **options)
        def get(self, *args, **options): return self.deed(super().get, *args, **options)
        def delete(self, key):
            self.die()
            super().delete(key)

    main(Dying(Path(sys.argv[1]) / "run"), total=int(sys.argv[3]), keep=1)
"""


@pytest.mark.parametrize("deed", range(2, 35, 3))
def test_killed_between_any_two_deeds(trainers: Trainers, deed: int) -> None:
    """Killed before or after any write, read or removal, the next start goes on from what LATEST names."""
    trainers.script.write_text(textwrap.dedent(TRAINER) + textwrap.dedent(DYING))
    argv = [sys.executable, str(trainers.script), str(trainers.store)]
    status, output = trainers.end(trainers.command([*argv, str(deed), "30"]))
    assert status == -signal.SIGKILL, output
    registry = Registry(DirectoryStore(trainers.store / "run"), "run")
    latest = registry.latest()
    # Before LATEST exists, a whole checkpoint is better than none; afterwards only LATEST says what counts.
    whole = [found.order[1] for found in registry.checkpoints() if found.is_complete]
    expected = latest.step if latest else max(whole, default=0)
    status, output = trainers.end(trainers.command([*argv, "1000000", "40"]))
    assert status == 0, output
    assert f"resumed {expected}\n" in output
    left = [path.name for path in (trainers.store / "run").iterdir()]
    assert sorted(left)[:3] == [".lock", "LATEST", "LEASE"]
    assert len(left) == 5, left


def test_killed_at_random_moments(trainers: Trainers) -> None:
    """Killed again and again wherever it happens to be, the run reaches its end with every step in order."""
    chance = random.Random(4)
    for _ in range(8):
        process = trainers.start("main(total=400, every=1, pause=0.002)")
        assert process.stdout is not None
        process.stdout.readline()
        time.sleep(chance.uniform(0.0, 0.15))
        process.kill()
        process.communicate()
    status, output = trainers.end(trainers.start("main(total=400, every=50)"))
    assert status == 0, output


def test_any_number_of_signals_during_a_save(trainers: Trainers) -> None:
    """Signals that come while the checkpoint is written tear nothing."""
    process = trainers.start(
        """
        class Slow(DirectoryStore):
            def upload(self, key, body, on_part):
                print("upload", flush=True)
                time.sleep(0.5)
                return super().upload(key, body, on_part)
        main(Slow(Path(sys.argv[1]) / "run"), total=10**6, every=5)
        """
    )
    assert process.stdout is not None
    while process.stdout.readline() != "upload\n":
        pass
    for number in (
        signal.SIGTERM,
        signal.SIGUSR1,
        signal.SIGTERM,
        signal.SIGINT,
        signal.SIGINT,
        signal.SIGINT,
    ):
        process.send_signal(number)
        time.sleep(0.05)
    status, output = trainers.end(process)
    assert status == 75, output
    left = int(output.rpartition("left ")[2])
    assert f"resumed {left}\n" in trainers.end(trainers.start(f"main(total={left})"))[1]


def test_three_interrupts_at_a_terminal_abort(trainers: Trainers) -> None:
    """A person at the keyboard who insists is obeyed: no save, 76 is what the code would have said."""
    master, slave = pty.openpty()
    process = trainers.start("main(total=10**6, every=10**6, pause=2.0)", stdin=slave)
    assert process.stdout is not None
    process.stdout.readline()
    for _ in range(3):
        process.send_signal(signal.SIGINT)
        time.sleep(0.1)
    status, output = trainers.end(process)
    os.close(master)
    os.close(slave)
    assert status == -signal.SIGINT, output
    assert "KeyboardInterrupt" in output
    assert not list(trainers.store.glob("run/step-*"))


def test_a_forked_child_dies_of_its_own_signal(trainers: Trainers) -> None:
    """A child that the trainer forked is not made deaf by the trainer's handlers."""
    process = trainers.start(
        """
        ck = Checkpointer(sys.argv[1], run_id="run")
        ck.track(steps=Steps())
        ck.resume()
        with ck:
            ready, said = os.pipe()
            child = os.fork()
            if not child:
                os.write(said, b"!")  # a signal before this is lost: Python drops those pending at a fork
                time.sleep(10)
                os._exit(1)
            os.read(ready, 1)
            os.kill(child, signal.SIGTERM)
            assert os.waitpid(child, 0)[1] == signal.SIGTERM
            assert not ck.poll()
            ck.step(1)
        raise SystemExit(ck.exit_code)
        """
    )
    status, output = trainers.end(process)
    assert status == 0, output


def test_outside_the_main_thread(trainers: Trainers, daemon: Daemon) -> None:
    """A loop in another thread hears the daemon's files, and says that it hears no signals."""
    process = trainers.start(
        """
        import threading
        code = []
        def run():
            try:
                main(total=10**6, every=10**6, pause=0.01)
            except SystemExit as left:
                code.append(left.code)
        thread = threading.Thread(target=run)
        thread.start()
        thread.join()
        sys.exit(code[0])
        """
    )
    daemon.wait(lambda status: status.phase == "training")
    daemon.order(Do.STOP, 1)
    status, output = trainers.end(process)
    assert status == 75, output
    assert "not in the main thread" in output


def test_the_status_stays_fresh_during_a_long_step(trainers: Trainers, daemon: Daemon) -> None:
    """A step of many seconds does not look like death, and `seen` is said in the midst of it."""
    process = trainers.start("main(total=3, every=10**6, pause=7.0)")
    first = daemon.wait(lambda status: status.phase == "training")
    daemon.order(Do.STOP, 4)
    seen = daemon.wait(lambda status: status.seq == 4, seconds=1.5)
    assert (seen.phase, seen.step) == ("seen", 0)
    later = daemon.wait(lambda status: (status.at - seen.at).total_seconds() > 3)
    assert later.step == 0
    assert later.pid == first.pid == process.pid
    assert trainers.end(process)[0] == 75
    assert daemon.status().saved.seq == 4


@pytest.mark.timeout(60)  # three starts of torch, on a machine that may be busy
@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL])
def test_the_example_is_bit_identical_after_an_interruption(
    trainers: Trainers, tmp_path: Path, how: signal.Signals
) -> None:
    """Stopped or killed, the example ends with the very bits of a run without a break."""
    pytest.importorskip("torch")

    def start(name: str, *more: str) -> subprocess.Popen[str]:
        return trainers.command(
            [
                *(sys.executable, str(EXAMPLE), "--url", str(tmp_path / name), "--run-id", name),
                *("--total-steps", "40", "--every-steps", "7"),
                *("--trace", str(tmp_path / f"{name}.trace"), "--digest", str(tmp_path / f"{name}.digest")),
                *more,
            ]
        )

    def steps(name: str) -> list[int]:
        trace = tmp_path / f"{name}.trace"
        return [int(line.split()[0]) for line in trace.read_text().splitlines()] if trace.exists() else []

    straight = start("straight")
    process = start("broken", "--step-seconds", "0.05")
    _wait(lambda: len(steps("broken")) > 10)
    process.send_signal(how)
    status, output = trainers.end(process)
    assert status == (75 if how is signal.SIGTERM else -how), output
    left_at = len(steps("broken"))
    lost = 0 if how is signal.SIGTERM else left_at % 7
    assert trainers.end(start("broken"))[0] == 0
    assert trainers.end(straight)[0] == 0
    assert steps("straight") == list(range(1, 41))
    assert steps("broken") == [*range(1, left_at + 1), *range(left_at - lost + 1, 41)]
    assert (tmp_path / "broken.digest").read_text() == (tmp_path / "straight.digest").read_text()


@pytest.mark.parametrize("shielded", [True, False])
def test_workers_and_a_signal_to_the_whole_group(trainers: Trainers, shielded: bool) -> None:
    """With the shield the last save is made though everyone got SIGTERM; without it 75 is no lie."""
    pytest.importorskip("torch")
    process = trainers.start(
        f"""
        import torch
        from spotwatch.train import worker_init
        class Slow(torch.utils.data.Dataset):
            def __len__(self): return 10**6
            def __getitem__(self, index):
                time.sleep(0.05)
                return index
        model = torch.nn.Linear(1, 1)
        ck = Checkpointer(sys.argv[1], run_id="run", every_steps=10**6)
        ck.track(model=model)
        step = ck.resume()
        shield = worker_init if {shielded} else None
        loader = torch.utils.data.DataLoader(Slow(), num_workers=2, worker_init_fn=shield)
        with ck:
            for batch in loader:
                step += 1
                if ck.step(step):
                    break
                print("step", flush=True)
        raise SystemExit(ck.exit_code)
        """,
        start_new_session=True,
    )
    assert process.stdout is not None
    for line in process.stdout:
        if line == "step\n":
            break
    os.killpg(process.pid, signal.SIGTERM)
    status, output = trainers.end(process)
    if shielded:
        assert status == 75, output
    # Torch raises in the main thread wherever that is just then: in the loop, or during the last save.
    assert status in {1, 75, 76}, output
    assert status != 75 or (trainers.store / "run" / "LATEST").exists()
