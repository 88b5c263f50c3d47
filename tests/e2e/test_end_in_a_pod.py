# SPDX-License-Identifier: Apache-2.0
"""The end of a sidecar: whom it stops, and whether Prometheus can still see that a stop was answered."""

from __future__ import annotations

import asyncio
import socket
import sys
import urllib.request
from collections.abc import Callable, Mapping
from datetime import UTC, datetime

import pytest

from tests.e2e.harness import Machine, until
from tests.e2e.test_own_end import put_notice, with_trainer

Maker = Callable[[Mapping[str, str]], Machine]
pytestmark = pytest.mark.timeout(90)
POD = {"KUBERNETES_SERVICE_HOST": "10.0.0.1"}
NATIVE = {**POD, "SPOTWATCH_POD__SIDECAR": "native"}


def free_port() -> int:
    """Return a port that nobody listens on now."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


def scrape(port: int) -> set[str]:
    """Return the phases that some case is in, as /metrics shows them."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as page:
        lines = page.read().decode().splitlines()
    rows = [line for line in lines if line.startswith("spotwatch_open_cases{")]
    return {row.split('"')[1] for row in rows if not row.endswith(" 0.0")}


async def stop_and_end(machine: Machine) -> None:
    """Stop the trainer by a notice and, when it has gone, the sidecar, as the kubelet does."""
    trainer = await with_trainer(machine)
    if port := machine.environment["SPOTWATCH_HTTP__LISTEN"].rpartition(":")[2]:
        assert await asyncio.to_thread(scrape, int(port)) == set()
    put_notice(machine, "stop")
    await asyncio.to_thread(trainer.wait, 30)
    assert machine.daemon is not None
    machine.daemon.terminate()


@pytest.mark.parametrize("pod", [POD, NATIVE], ids=["plain", "native"])
async def test_a_scrape_sees_the_answer(make_machine: Maker, pod: Mapping[str, str]) -> None:
    """The sidecar is ended when the trainer has gone: /metrics shows the answer for two scrapes more."""
    port = free_port()
    listen = {"SPOTWATCH_HTTP__LISTEN": f"127.0.0.1:{port}", "SPOTWATCH_POLICY__DRAIN_SECONDS": "120"}
    machine = make_machine({**pod, **listen})
    await stop_and_end(machine)
    await until(lambda: machine.count_in_log("staying"), 30, "it stays")
    assert await asyncio.to_thread(scrape, port) == {"stopped"}
    assert machine.daemon is not None
    assert await asyncio.to_thread(machine.daemon.wait, 30) == 0
    (answered,) = [row for row in machine.log_rows() if row.get("event") == "answered"]
    seen_for = datetime.now(UTC) - datetime.fromisoformat(answered["at"])
    assert seen_for.total_seconds() >= 9.5


async def test_where_nobody_scrapes_nothing_is_waited_for(make_machine: Maker) -> None:
    """Without a Prometheus the pod ends when the trainer has ended, not ten seconds later."""
    machine = make_machine({**NATIVE, "SPOTWATCH_POLICY__DRAIN_SECONDS": "120"})
    await stop_and_end(machine)
    assert machine.daemon is not None
    assert await asyncio.to_thread(machine.daemon.wait, 30) == 0
    assert (machine.count_in_log("answered"), machine.count_in_log("staying")) == (1, 0)


async def test_a_native_sidecar_that_is_restarted_alone_leaves_the_trainer(make_machine: Maker) -> None:
    """A probe or the kernel ends it while the trainer lives: no order, no signal, exit 0."""
    machine = make_machine(NATIVE)
    trainer = await with_trainer(machine)
    assert machine.daemon is not None
    machine.daemon.terminate()
    assert await asyncio.to_thread(machine.daemon.wait, 30) == 0
    assert (machine.ordered(), trainer.poll()) == ([], None)
    assert not (machine.runtime_dir / "draining").exists()


@pytest.mark.parametrize("has_target", [True, False])
async def test_a_pod_whose_trainer_has_gone(make_machine: Maker, has_target: bool) -> None:
    """A target that is not there is nobody to stop, and no error; who may know only the flag is told."""
    machine = make_machine({**POD, "SPOTWATCH_POLICY__DRAIN_SECONDS": "2"})
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", "")
    await process.wait()
    machine.pidfile.write_text(str(process.pid), encoding="ascii")
    pidfile = ["--pidfile", str(machine.pidfile)] if has_target else []
    daemon = await machine.start_daemon("--provider", "file", *pidfile)
    daemon.terminate()
    assert await asyncio.to_thread(daemon.wait, 30) == 0
    assert machine.ordered() == ([] if has_target else ["stop"])
    assert "error" not in {row.get("level") for row in machine.log_rows()}
