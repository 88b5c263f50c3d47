# SPDX-License-Identifier: Apache-2.0
"""The image beside a trainer in a container of its own: the flag, the signal, and who leaves with whom.

The trainer is the script of docs/handshake.md in an image that knows nothing of spotwatch.
"""

from __future__ import annotations

import json
import re
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from tests.real import images
from tests.real.containers import Podman
from tests.real.namespace import wait_until

pytestmark = [pytest.mark.real, pytest.mark.timeout(400)]

_LOCKED_DOWN = ("--read-only", "--cap-drop=ALL", "--security-opt=no-new-privileges")
_FOLDER = "/run/spotwatch/shared"
_COMPOSE = images.ROOT / "deploy/compose/compose.yaml"
# Both start within a second on an idle machine; CI's is not one.
_START_SECONDS = 60
_ANSWER_SECONDS = 30
_ANSWERED = '"answer": "acknowledged"'


class _Beside:
    """A trainer and a daemon that share a volume, and nothing else unless the test says so."""

    def __init__(self, podman: Podman, image: str, base_image: str, script: Path) -> None:
        self.podman = podman
        self._images = {"daemon": image, "trainer": base_image}
        self.script = script
        self.volume = f"run-{uuid.uuid4().hex[:8]}"
        self._names: list[str] = []

    def trainer(self, *options: str) -> str:
        """Start the trainer and return its name."""
        options = (
            *(f"--volume={self.volume}:/run/spotwatch", f"--volume={self.script}:/train.py:ro"),
            *("--workdir=/tmp", f"--env=SPOTWATCH_RUNTIME_DIR={_FOLDER}"),
            *options,
        )
        return self._start("trainer", "python3", "/train.py", options=options)

    def daemon(self, *options: str, command: tuple[str, ...] = ("run",)) -> str:
        """Start the daemon, locked down, and return its name once it watches."""
        options = (*_LOCKED_DOWN, f"--volume={self.volume}:/run/spotwatch", *options)
        name = self._start("daemon", *command, options=options)
        self.podman.wait_for_log(name, '"watching"', _START_SECONDS)
        return name

    def cloud(self, *arguments: str) -> str:
        """Start an emulated cloud and return its name; it listens on the loopback of its own network."""
        return self._start("daemon", "emulate", *arguments, options=_LOCKED_DOWN)

    def pause(self) -> str:
        """Start what holds the processes of both, as the compose file does, and return its name."""
        service = yaml.safe_load(_COMPOSE.read_text(encoding="utf-8"))["services"]["pause"]
        program, *arguments = service["entrypoint"]
        return self._start("daemon", *arguments, options=("--init", f"--entrypoint={program}"))

    def trigger(self, daemon: str, *words: str) -> None:
        """Give a notice by hand, inside the daemon's container."""
        done = self.podman.exec(daemon, "spotwatch", "trigger", *words)
        assert done.returncode == 0, done.stderr

    def saved(self, trainer: str) -> int:
        """Return the step of the trainer's last save; 0 before the first."""
        done = self.podman.exec(trainer, "cat", "/tmp/progress")
        return int(done.stdout) if done.returncode == 0 else 0

    def close(self) -> None:
        """Remove both, and the volume."""
        if self._names:
            self.podman("rm", "--force", "--depend", "--time=1", *self._names)
        self.podman("volume", "rm", self.volume, check=False)

    def _start(self, image: str, *command: str, options: tuple[str, ...]) -> str:
        name = self.podman.start(self._images[image], *command, options=options)
        self._names.append(name)
        return name


@pytest.fixture
def beside(podman: Podman, image: str, base_image: str, tmp_path: Path) -> Iterator[_Beside]:
    """Give a trainer and a daemon to start."""
    script = re.search(r"```python\n(.*?)```", (images.ROOT / "docs/handshake.md").read_text(), re.DOTALL)
    assert script
    (tmp_path / "train.py").write_text(script[1], encoding="utf-8")
    (tmp_path / "train.py").chmod(0o644)
    made = _Beside(podman, image, base_image, tmp_path / "train.py")
    yield made
    made.close()


@pytest.mark.parametrize(
    ("trainers", "daemons"),
    [
        pytest.param(["--user=1000:1000"], ["--user=1000:1000"], id="same user"),
        pytest.param(["--user=0:0"], ["--user=0:0"], id="both root"),
        pytest.param(
            ["--user=1000:1000", "--group-add=2000"],
            ["--group-add=2000", "--env=SPOTWATCH_FLAG__OWNER=1000:2000"],
            id="shared group",
        ),
    ],
)
def test_the_flag_goes_through_the_volume(beside: _Beside, trainers: list[str], daemons: list[str]) -> None:
    """A flush is answered by a save and the removal of the flag, also by a trainer of another user."""
    daemon = beside.daemon(*daemons)
    trainer = beside.trainer(*trainers)
    beside.trigger(daemon, "flush")
    wait_until(lambda: beside.saved(trainer) > 0, _ANSWER_SECONDS, beside.podman.logs(daemon))
    beside.podman.wait_for_log(daemon, _ANSWERED, _ANSWER_SECONDS)
    assert beside.podman.is_running(trainer)


def test_a_stranger_in_the_pod_cannot_give_orders(beside: _Beside) -> None:
    """Who mounts the volume as another user, and shares no group, neither reads nor replaces the folder."""
    beside.daemon()
    stranger = beside.trainer("--user=1000:1000")
    for command in (f"ls {_FOLDER}", f"mv {_FOLDER} /run/spotwatch/gone", f"touch {_FOLDER}/draining"):
        assert beside.podman.exec(stranger, "sh", "-c", command).returncode != 0


def test_a_stop_crosses_containers_and_the_daemon_lives_on(beside: _Beside) -> None:
    """SIGTERM in a shared pid namespace: the trainer saves and exits with 75, the daemon hears of it."""
    shared = f"--pid=container:{beside.pause()}"
    trainer = beside.trainer(shared, "--user=1000:1000")
    daemon = beside.daemon(
        shared, "--user=1000:1000", r"--env=SPOTWATCH_TARGET__0__PROCESS=^python3 /train\.py"
    )
    beside.trigger(daemon, "stop")
    assert beside.podman.wait(trainer, _ANSWER_SECONDS) == 75
    beside.podman.wait_for_log(daemon, _ANSWERED, _ANSWER_SECONDS)
    assert beside.podman.is_running(daemon)


def test_the_daemon_leaves_with_the_trainer(beside: _Beside) -> None:
    """`--exit-with-trainer`: when the trainer is gone, whoever ended it, the daemon ends too."""
    shared = f"--pid=container:{beside.pause()}"
    trainer = beside.trainer(shared, "--user=1000:1000")
    command = ("run", "--exit-with-trainer", r"--process=^python3 /train\.py")
    daemon = beside.daemon(shared, "--user=1000:1000", command=command)
    beside.podman("stop", "--time=30", trainer)
    beside.podman.wait(daemon, _ANSWER_SECONDS)
    assert '"trainer_gone"' in beside.podman.logs(daemon)


def test_a_reclaim_by_the_cloud(beside: _Beside) -> None:
    """In the network of an emulated AWS: the notice is heard, the trainer saves and ends with 75."""
    cloud = beside.cloud("aws", "--port=1338", "--notice-after=1s")
    shared = f"--pid=container:{beside.pause()}"
    trainer = beside.trainer(shared, "--user=1000:1000")
    beside.daemon(
        *(shared, f"--network=container:{cloud}", "--user=1000:1000", "--env=SPOTWATCH_PROVIDERS=aws"),
        "--env=AWS_EC2_METADATA_SERVICE_ENDPOINT=http://127.0.0.1:1338",
        "--env=SPOTWATCH_POLICY__MODE=stop-now",
        r"--env=SPOTWATCH_TARGET__0__PROCESS=^python3 /train\.py",
    )
    assert beside.podman.wait(trainer, _ANSWER_SECONDS) == 75


def test_the_compose_file(
    podman: Podman, image: str, base_image: str, tmp_path: Path, beside: _Beside
) -> None:
    """All three services start as written, and a stop ends the trainer with 75 while the others stay.

    Changed is what no test may share (name, network) and what podman-compose cannot read: it does not know
    `pid: service:`, so the container is named.
    """
    compose = yaml.safe_load(_COMPOSE.read_text(encoding="utf-8"))
    compose["name"] = name = f"c{uuid.uuid4().hex[:8]}"
    for service in compose["services"].values():
        service["network_mode"] = "none"
        if service.get("pid") == "service:pause":
            service |= {"pid": f"container:{name}_pause_1", "depends_on": ["pause"]}
    compose["services"]["trainer"] |= {"working_dir": "/tmp"}
    compose["services"]["trainer"]["volumes"].append(f"{beside.script}:/tmp/train.py:ro")
    (tmp_path / "compose.yaml").write_text(yaml.safe_dump(compose), encoding="utf-8")
    variables = f"export TRAINER_IMAGE={base_image} SPOTWATCH_IMAGE={image}"
    tool = f"{variables}; {Path(sys.executable).with_name('podman-compose')} --file compose.yaml"
    daemon, trainer = f"{name}_spotwatch_1", f"{name}_trainer_1"
    try:
        done = podman.shell(f"{tool} up --detach", cwd=tmp_path)
        assert done.returncode == 0, done.stdout + done.stderr
        podman.wait_for_log(daemon, '"watching"', _START_SECONDS)
        done = podman.exec(daemon, "spotwatch", "check", "--json")
        rows = {row["name"]: row["result"] for row in json.loads(done.stdout)["checks"]}
        assert {rows[key] for key in ("target", "runtime_dir", "state_dir", "flag.remove")} == {"ok"}, (
            done.stdout
        )
        beside.trigger(daemon, "stop")
        assert podman.wait(trainer, _ANSWER_SECONDS) == 75
        podman.wait_for_log(daemon, _ANSWERED, _ANSWER_SECONDS)
        assert podman.is_running(daemon)
    finally:
        podman.shell(f"{tool} down --volumes", cwd=tmp_path)
