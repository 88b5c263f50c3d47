# SPDX-License-Identifier: Apache-2.0
"""One reclaim on an emulated AWS under the eyes of a real Prometheus, from first save to the machine's end.

Two machines: one trains and is taken; on the other a daemon listens for signed notices and hears one that is
not signed. It judges nothing: what was seen is asked of Prometheus afterwards.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from spotwatch.drill.cloud import emulated
from spotwatch.emulator import Emulator
from tests.real.monitoring import Monitoring, fetch_text, free_ports, until

ROOT = Path(__file__).parents[2]
TRAINER, LISTENER = "trainer-1", "listener-1"
_FOREIGN = ("SPOTWATCH_", "AWS_EC2_METADATA_", "GCE_METADATA_", "NOTIFY_SOCKET", "KUBERNETES_")


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """How long what takes; the policy is in proportion to the window, as in a drill."""

    window_seconds: float = 20.0
    step_seconds: float = 0.05
    every_steps: int = 160
    """Eight seconds: the trainer's word is renewed every five, and must be seen between two saves."""
    before_seconds: float = 4.0
    """From the first durable save that was seen to the notice."""
    trainer: Path = ROOT / "examples/train.py"


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """When it was, and what the daemons showed; times of the wall clock."""

    start: float
    noticed: float
    stopped: float
    gone: float
    exit_code: int
    expositions: tuple[str, ...]


def play(monitoring: Monitoring, folder: Path, pace: Pace | None = None) -> Seen:
    """Play it, and return when the machine is gone and Prometheus has seen it."""
    return asyncio.run(_play(monitoring, folder, pace or Pace()))


async def _play(monitoring: Monitoring, folder: Path, pace: Pace) -> Seen:
    ports = free_ports(2)
    monitoring.watch(**{TRAINER: f"127.0.0.1:{ports[0]}", LISTENER: f"127.0.0.1:{ports[1]}"})
    start = time.time()
    async with _cloud("aws", folder) as (aws, to_aws), _cloud("digitalocean", folder) as (_, to_ocean):
        with contextlib.ExitStack() as stack:
            trainer_machine = _Machine(folder / TRAINER, ports[0], to_aws, pace)
            stack.callback(trainer_machine.end)
            listening = _Machine(folder / LISTENER, ports[1], to_ocean, pace)
            stack.callback(listening.end)
            pidfile = folder / "trainer.pid"
            trainer_machine.start_daemon("aws", "--pidfile", str(pidfile))
            listening.start_daemon("digitalocean")
            trainer = trainer_machine.start_trainer(folder / "store", pidfile, pace)
            saved = f'spotwatch_checkpoint_step{{instance="{TRAINER}"}} > 0'
            await _until(lambda: monitoring.ask(saved), 60, "the first save is seen")
            await asyncio.to_thread(_post_unsigned, to_ocean["SPOTWATCH_WEBHOOK__LISTEN"])
            await asyncio.sleep(pace.before_seconds)
            aws.announce(pace.window_seconds)
            noticed = time.time()
            await _until(lambda: trainer.poll() is not None, pace.window_seconds + 30, "the trainer leaves")
            done = f'spotwatch_cases_total{{instance="{TRAINER}",outcome="durable"}} > 0'
            await _until(lambda: monitoring.ask(done), 20, "its last save is seen")
            stopped = time.time()
            await asyncio.sleep(max(0.0, noticed + pace.window_seconds - stopped))
            expositions = tuple(fetch_text(f"http://127.0.0.1:{port}/metrics") for port in ports)
            trainer_machine.end()
            gone = time.time()
            down = f'up{{instance="{TRAINER}"}} == 0'
            await _until(lambda: monitoring.ask(down), 30, "that the machine is gone is seen")
    return Seen(
        start=start,
        noticed=noticed,
        stopped=stopped,
        gone=gone,
        exit_code=trainer.returncode or 0,
        expositions=expositions,
    )


class _Machine:
    def __init__(self, folder: Path, port: int, to_cloud: Mapping[str, str], pace: Pace) -> None:
        folder.mkdir()
        (folder / "spotwatch.toml").touch()
        self.folder = folder
        self._processes: list[subprocess.Popen[bytes]] = []
        share = pace.window_seconds
        self._environ = {
            **{k: v for k, v in os.environ.items() if not k.startswith(_FOREIGN)},
            "OMP_NUM_THREADS": "1",
            "SPOTWATCH_RUNTIME_DIR": str(folder / "run"),
            "SPOTWATCH_STATE_DIR": str(folder / "state"),
            "SPOTWATCH_HTTP__LISTEN": f"127.0.0.1:{port}",
            "SPOTWATCH_POLICY__SAVE_SECONDS": f"{share * 0.1:g}",
            "SPOTWATCH_POLICY__STOP_MARGIN_SECONDS": f"{share * 0.3:g}",
            **to_cloud,
        }

    def start_daemon(self, provider: str, *options: str) -> None:
        config = str(self.folder / "spotwatch.toml")
        self._start("daemon", "-m", "spotwatch", "run", "--config", config, "--provider", provider, *options)

    def start_trainer(self, store: Path, pidfile: Path, pace: Pace) -> subprocess.Popen[bytes]:
        trainer = self._start(
            "trainer",
            *(str(pace.trainer), "--url", str(store), "--run-id", "run"),
            *("--every-steps", str(pace.every_steps), "--step-seconds", f"{pace.step_seconds:g}"),
            *("--total-steps", "1000000"),
        )
        fresh = pidfile.with_suffix(".new")
        fresh.write_text(f"{trainer.pid}\n", encoding="ascii")
        fresh.rename(pidfile)
        return trainer

    def end(self) -> None:
        """Kill everything on it, as a cloud does."""
        for process in self._processes:
            if process.poll() is None:
                process.kill()
            process.wait()

    def _start(self, name: str, *arguments: str) -> subprocess.Popen[bytes]:
        with (self.folder / f"{name}.log").open("wb") as log:
            process = subprocess.Popen(
                [sys.executable, *arguments], stdout=log, stderr=log, env=self._environ, cwd=self.folder
            )
        self._processes.append(process)
        return process


@contextlib.asynccontextmanager
async def _cloud(name: str, folder: Path) -> AsyncIterator[tuple[Emulator, Mapping[str, str]]]:
    async with emulated(name, folder / f"{name}.secret") as (cloud, variables):
        yield cloud, variables


async def _until(condition: Callable[[], Any], seconds: float, what: str) -> None:
    """Wait in a thread: the clouds are played by this one."""
    await asyncio.to_thread(until, condition, seconds, what)


def _post_unsigned(listen: str) -> None:
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    url = f"http://{listen}/webhook/digitalocean"

    def is_refused() -> bool:
        try:
            opener.open(url, b"{}", timeout=10)
        except urllib.error.HTTPError as error:
            return error.code == 401
        except OSError:
            return False
        raise AssertionError("an unsigned notice was accepted")

    until(is_refused, 30, "the webhook listener answers")
