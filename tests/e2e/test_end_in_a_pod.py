# SPDX-License-Identifier: Apache-2.0
"""The end of a sidecar: whom it stops, and whether Prometheus can still see that a stop was answered."""

from __future__ import annotations

import asyncio
import socket
import sys
import urllib.request
from collections.abc import Callable, Mapping

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


async def stopped_in_a_pod(machine: Machine, port: int) -> set[str]:
    """Scrape, stop the trainer by a notice, end the sidecar at once; return what was seen last."""
    trainer = await with_trainer(machine)
    seen = await asyncio.to_thread(scrape, port)
    assert seen == set()
    put_notice(machine, "stop")
    await asyncio.to_thread(trainer.wait, 30)
    assert machine.daemon is not None
    machine.daemon.terminate()
    for _ in range(2):
        await until(lambda: machine.count_in_log("ending"), 30, "it ends")
        seen = await asyncio.to_thread(scrape, port)
        while seen != {"stopped"}:
            seen = await asyncio.to_thread(scrape, port)
    return seen


@pytest.mark.parametrize("pod", [POD, NATIVE], ids=["plain", "native"])
async def test_a_scrape_sees_the_answer(make_machine: Maker, pod: Mapping[str, str]) -> None:
    """The sidecar is ended when the trainer has gone: /metrics is there until twice read, and no longer."""
    port = free_port()
    machine = make_machine(
        {
            **pod,
            "SPOTWATCH_HTTP__LISTEN": f"127.0.0.1:{port}",
            "SPOTWATCH_POLICY__DRAIN_SECONDS": "120",
        }
    )
    assert await stopped_in_a_pod(machine, port) == {"stopped"}
    assert machine.daemon is not None
    assert await asyncio.to_thread(machine.daemon.wait, 30) == 0


async def test_where_nobody_scrapes_nothing_is_waited_for(make_machine: Maker) -> None:
    """Without a Prometheus the pod ends when the trainer has ended, not ten seconds later."""
    machine = make_machine({**NATIVE, "SPOTWATCH_POLICY__DRAIN_SECONDS": "120"})
    trainer = await with_trainer(machine)
    put_notice(machine, "stop")
    await asyncio.to_thread(trainer.wait, 30)
    assert machine.daemon is not None
    machine.daemon.terminate()
    assert await asyncio.to_thread(machine.daemon.wait, 30) == 0
    rows = [row for row in machine.log_rows() if row.get("event") in ("ending", "answered")]
    assert "answered" in [row["event"] for row in rows]


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
