# SPDX-License-Identifier: Apache-2.0
"""The shipped pods on podman, which plays their template: it has no Jobs, no native sidecars, and no kubelet.

It is no test. What is changed of a manifest is all in `played`; the rest is what people copy.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from tests.manifests import PLAIN, Document, containers, daemon_in, pod_of, read, trainer_in
from tests.real.containers import Podman
from tests.real.namespace import wait_until

RUNTIME = "/run/spotwatch/shared"
Change = Callable[[Document], None]

# A trainer with the library, whose state is one number and whose step takes 50 ms.
TRAINER = """\
import sys, time
from spotwatch.train import Checkpointer

class State:
    step = 0
    def state_dict(self): return {"step": self.step}
    def load_state_dict(self, row): self.step = row["step"]

state, last = State(), int(sys.argv[2])
ck = Checkpointer("checkpoints", run_id="none", every_steps=1000000)
ck.track(state=state)
step = ck.resume()
print("at step", step, flush=True)
with ck:
    while step < last:
        time.sleep(0.05)
        step += 1
        state.step = step
        if ck.step(step):
            break
print("left at step", step, flush=True)
raise SystemExit(ck.exit_code)
"""

# One that knows the flag and SIGTERM, as docs/handshake.md tells it, and takes a while to save.
SCRIPT = """\
flag=$SPOTWATCH_RUNTIME_DIR/checkpoint-now
step=0; stopping=
save() { sleep "$1"; echo "$step" > /data/progress.new && mv /data/progress.new /data/progress; }
trap 'stopping=yes' TERM
while [ -z "$stopping" ]; do
    sleep 0.1; step=$((step + 1))
    if [ -e "$flag" ]; then save 0 && rm -f "$flag" && echo flushed; fi
done
save 2 && echo saved && exit 75
"""


def library_trainer(last_step: int = 1_000_000, *, waits: bool = False) -> list[str]:
    """Return the command of a trainer with the library.

    Args:
        last_step: at which it has finished.
        waits: begin once spotwatch is there, as the startup probe of a native sidecar has it.
    """
    command = ["python", "-c", TRAINER, "train.py", str(last_step)]
    if not waits:
        return command
    until = 'until [ -d "$SPOTWATCH_RUNTIME_DIR" ]; do sleep 0.1; done; exec "$@"'
    return ["sh", "-c", until, "sh", *command]


def script_trainer() -> list[str]:
    """Return the command of a shell script that takes part by flag and signal."""
    return ["sh", "-c", SCRIPT, "train.py"]


def played(manifest: str, name: str, image: str, trainer: Sequence[str], data: Path) -> Document:
    """Return the pod of a shipped manifest, with what a test must replace.

    Replaced: the images, the trainer's command, where it saves, and its GPU. Added: the variable that the
    kubelet gives each container. Taken away, as podman has no such thing: the Job around the pod, what makes
    an init container a sidecar (it becomes an ordinary one), and, without a network, probes and ports.
    """
    documents = read(PLAIN / f"{manifest}.yaml")
    spec = pod_of(documents)
    trains = trainer_in(spec)
    is_exec = trains["command"][:2] == ["spotwatch", "exec"]
    trains |= {"args": list(trainer)} if is_exec else {"command": list(trainer)}
    trains.pop("resources")
    trains["volumeMounts"].append({"name": "data", "mountPath": "/data"})
    spec["volumes"].append({"name": "data", "hostPath": {"path": str(data), "type": "Directory"}})
    for container in containers(spec):
        container["image"] = image
        container["env"].append({"name": "KUBERNETES_SERVICE_HOST", "value": "10.0.0.1"})
        for key in ("startupProbe", "livenessProbe", "readinessProbe", "restartPolicy", "ports"):
            container.pop(key, None)
    for row in trains["env"]:
        if row["name"] == "SPOTWATCH_CHECKPOINT_URL":
            row["value"] = "file:///data"
    spec["containers"] = [*spec.pop("initContainers", []), *spec["containers"]]
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec}


class Pod:
    """One of our pods, played; use it as a context manager.

    Args:
        podman: that plays it.
        folder: for its manifest and what the trainer saves; the next pod of a run gets the same.
        manifest: the name of the shipped file.
        image: with spotwatch in it.
        trainer: the command.
        change: made to the pod before it is played.
    """

    def __init__(
        self,
        podman: Podman,
        folder: Path,
        *,
        manifest: str,
        image: str,
        trainer: Sequence[str],
        change: Change = lambda _: None,
    ) -> None:
        self._podman = podman
        self.name = f"pod-{uuid.uuid4().hex[:8]}"
        self.data = folder / "data"
        self.data.mkdir(exist_ok=True)
        self.data.chmod(0o777)
        document = played(manifest, self.name, image, trainer, self.data)
        change(document["spec"])
        self._manifest = folder / "pod.yaml"
        self._manifest.write_text(json.dumps(document), encoding="utf-8")
        self.daemon = f"{self.name}-{daemon_in(document['spec'])['name']}"
        self.trainer = f"{self.name}-trainer"

    def __enter__(self) -> Self:
        """Start it."""
        self._podman.play(self._manifest)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Remove it; when the test has failed, its logs are said first."""
        if error is not None:
            error.add_note(f"{self.daemon}:\n{self.log()}\n{self.trainer}:\n{self.trainer_log()}")
        self._podman("pod", "rm", "--force", "--time=1", self.name, check=False)
        self._podman("volume", "prune", "--force", check=False)

    def log(self) -> str:
        """Return what spotwatch has logged."""
        return self._podman.logs(self.daemon)

    def trainer_log(self) -> str:
        """Return what the trainer has said."""
        return self._podman.logs(self.trainer)

    def spotwatch(self, *arguments: str) -> str:
        """Run `spotwatch` in the daemon's container, as `kubectl exec` would, and return what it says."""
        done = self._podman.exec(self.daemon, "spotwatch", *arguments)
        return done.stdout + done.stderr

    def files(self) -> list[str]:
        """Return the names in the runtime directory, as the trainer sees it."""
        return self._podman.exec(self.daemon, "ls", RUNTIME).stdout.split()

    def order(self) -> dict[str, Any]:
        """Return the order in force; empty when there is none."""
        done = self._podman.exec(self.daemon, "cat", f"{RUNTIME}/order.json")
        found: dict[str, Any] = json.loads(done.stdout or "{}")
        return found

    def stop(self, *names: str, seconds: int = 60) -> None:
        """Tell containers to end as the kubelet does, all at the same time: SIGTERM, and SIGKILL at last.

        Not `podman pod stop`: it also ends the container that holds the shared process ids, and with it all.
        """
        self._podman("stop", f"--time={seconds}", *names, seconds=seconds + 30)

    def ended_at(self, name: str) -> str:
        """Return when a container ended, as a text that sorts."""
        return str(self._podman.inspect(name)["State"]["FinishedAt"])

    def wait_for(self, text: str, seconds: float = 60) -> None:
        """Wait until spotwatch has logged `text`."""
        wait_until(lambda: text in self.log(), seconds, f"{text!r} in the log of {self.daemon}")

    def wait_for_trainer(self, text: str, seconds: float = 60) -> None:
        """Wait until the trainer has said `text`."""
        wait_until(lambda: text in self.trainer_log(), seconds, f"{text!r} of {self.trainer}")
