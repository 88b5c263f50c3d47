# SPDX-License-Identifier: Apache-2.0
"""A podman with a store of its own: it shares no image, name or network with the podman of this machine.

It is no test, and knows nothing of spotwatch. Nothing stays behind: containers, mounts and the store are gone
at the end of the `with`.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self

from tests.real.namespace import wait_until

# crun, Debian's default, refuses a host that has both cgroup hierarchies; the limits are what this machine's
# root may set. The default network would leave rules of a firewall and a sysctl behind.
_SETTINGS = """
[containers]
default_ulimits = ["nofile=16384:16384", "nproc=16384:16384"]
netns = "none"
pids_limit = 0
log_driver = "k8s-file"
[engine]
runtime = "runc"
cgroup_manager = "cgroupfs"
events_logger = "file"
lock_type = "file"
image_copy_tmp_dir = "{folder}/copies"
[network]
network_config_dir = "{folder}/networks"
"""
_STORAGE = """
[storage]
driver = "overlay"
graphroot = "{folder}/root"
runroot = "{folder}/runroot"
"""
_CGROUPS = Path("/sys/fs/cgroup")


class Podman:
    """Podman on a store of its own; use it as a context manager.

    Args:
        folder: for everything it keeps; removed at the end.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._places = [
            f"--root={folder}/root",
            f"--runroot={folder}/runroot",
            f"--tmpdir={folder}/tmp",
        ]
        self._environment = {
            "PATH": os.environ["PATH"],
            "HOME": str(folder),
            "TMPDIR": str(folder / "copies"),
            "CONTAINERS_CONF": str(folder / "containers.conf"),
            "CONTAINERS_STORAGE_CONF": str(folder / "storage.conf"),
            "CONTAINERS_REGISTRIES_CONF": str(folder / "registries.conf"),
            # Health checks are run by us: podman would make timers of a systemd that is not there.
            "DISABLE_HC_SYSTEMD": "true",
        }

    def __enter__(self) -> Self:
        """Write its configuration."""
        for name in ("copies", "networks"):
            (self._folder / name).mkdir(parents=True)
        (self._folder / "containers.conf").write_text(_SETTINGS.format(folder=self._folder))
        (self._folder / "storage.conf").write_text(_STORAGE.format(folder=self._folder))
        (self._folder / "registries.conf").write_text("unqualified-search-registries = []\n")
        return self

    def __exit__(self, *_: object) -> None:
        """End its containers and remove all that it has made."""
        self("pod", "rm", "--all", "--force", "--time=1", check=False)
        self("rm", "--all", "--force", "--depend", "--time=1", check=False)
        for mounted in sorted(_mounts_below(self._folder), reverse=True):
            subprocess.run(["umount", "--lazy", str(mounted)], check=True, capture_output=True)
        shutil.rmtree(self._folder)
        for parent in [*_CGROUPS.glob("*/libpod_parent/conmon"), *_CGROUPS.glob("*/libpod_parent")]:
            # One that another podman uses at this moment is not empty.
            subprocess.run(["rmdir", str(parent)], check=False, capture_output=True)

    def __call__(
        self,
        *arguments: str,
        seconds: float = 60,
        check: bool = True,
        environment: Mapping[str, str] | None = None,
    ) -> subprocess.CompletedProcess[str]:
        """Run `podman` with `arguments` and return how it went.

        Args:
            arguments: the subcommand first.
            seconds: how long it may take.
            check: whether a status other than 0 fails the test, with what was printed.
            environment: variables beside its own.
        """
        done = subprocess.run(
            ["podman", *self._places, *arguments],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=seconds,
            env={**self._environment, **(environment or {})},
            check=False,
        )
        assert not check or done.returncode == 0, f"podman {' '.join(arguments)}\n{done.stdout}{done.stderr}"
        return done

    def shell(self, script: str, *, seconds: float = 60, cwd: Path) -> subprocess.CompletedProcess[str]:
        """Run a script of a page, in which `docker` and `podman` are this podman, and stop at what fails.

        It runs in `cwd` and in a network of its own: `--network host` is that one, and every port is free.
        """
        tools = self._folder / "bin"
        tools.mkdir(exist_ok=True)
        for name in ("docker", "podman"):
            tool = tools / name
            tool.write_text(f'#!/bin/sh\nexec {shutil.which("podman")} {" ".join(self._places)} "$@"\n')
            tool.chmod(0o755)
        return subprocess.run(
            ["unshare", "--net", "bash", "-euo", "pipefail", "-c", f"ip link set lo up\n{script}"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=seconds,
            cwd=cwd,
            env={**self._environment, "PATH": f"{tools}:{os.environ['PATH']}"},
            check=False,
        )

    def build(
        self, tag: str, *options: str, folder: Path, dockerfile: Path | None = None, seconds: float = 300
    ) -> str:
        """Build `localhost/TAG` from `folder` with this machine's network, and return that name."""
        name = f"localhost/{tag}"
        file = dockerfile or folder / "Dockerfile"
        arguments = ["--pull=never", "--network=host", "--format=docker", f"--file={file}", f"--tag={name}"]
        self("build", *arguments, *options, str(folder), seconds=seconds)
        return name

    def start(self, image: str, *command: str, options: Sequence[str] = (), name: str = "") -> str:
        """Start a container in the background, without a network, and return its name.

        Args:
            image: one that is in the store.
            command: arguments of its entry point.
            options: of `podman run`.
            name: of the container; empty: one that nobody has.
        """
        name = name or f"c-{uuid.uuid4().hex[:8]}"
        self("run", "--detach", "--pull=never", f"--name={name}", *options, image, *command)
        return name

    def once(
        self, image: str, *command: str, options: Sequence[str] = (), seconds: float = 60
    ) -> subprocess.CompletedProcess[str]:
        """Run a container to its end, without a network, and return how it went."""
        return self("run", "--rm", "--pull=never", *options, image, *command, seconds=seconds, check=False)

    def exec(self, name: str, *command: str, options: Sequence[str] = ()) -> subprocess.CompletedProcess[str]:
        """Run `command` in a container and return how it went."""
        return self("exec", *options, name, *command, check=False)

    def logs(self, name: str) -> str:
        """Return what a container has written to both outputs."""
        done = self("logs", name, check=False)
        return done.stdout + done.stderr

    def inspect(self, name: str) -> dict[str, Any]:
        """Return what podman knows of a container or image."""
        rows: list[dict[str, Any]] = json.loads(self("inspect", name).stdout)
        return rows[0]

    def wait_for_log(self, name: str, words: str, seconds: float) -> None:
        """Return once a container has written `words`; fail as soon as it has ended without."""

        def is_there() -> bool:
            was_running = self.is_running(name)
            log = self.logs(name)
            assert words in log or was_running, f"{name} has ended:\n{log}"
            return words in log

        wait_until(is_there, seconds, f"{words} from {name}")

    def is_running(self, name: str) -> bool:
        """Tell whether a container has started and not ended."""
        return bool(self.inspect(name)["State"]["Running"])

    def pid(self, name: str) -> int:
        """Return the pid of a running container's first process, as this machine numbers it."""
        return int(self.inspect(name)["State"]["Pid"])

    def signal(self, name: str, signum: signal.Signals) -> None:
        """Send a signal to a container's first process."""
        os.kill(self.pid(name), signum)

    def wait(self, name: str, seconds: float) -> int:
        """Return a container's exit status once it has ended."""
        what = f"the end of {name}"
        wait_until(lambda: not self.is_running(name), seconds, what)
        return int(self.inspect(name)["State"]["ExitCode"])

    def remove(self, *names: str) -> None:
        """End containers, if need be at once, and forget them."""
        self("rm", "--force", "--time=1", "--volumes", *names)

    def play(self, manifest: Path, *options: str, seconds: float = 60) -> None:
        """Start the pods of a Kubernetes manifest, without a network; containers are named POD-CONTAINER."""
        self("play", "kube", "--network=none", *options, str(manifest), seconds=seconds)

    def unplay(self, manifest: Path, *, seconds: float = 60) -> None:
        """Stop and remove the pods of a manifest."""
        self("play", "kube", "--down", str(manifest), seconds=seconds)


def _mounts_below(folder: Path) -> list[Path]:
    rows = Path("/proc/self/mountinfo").read_text(encoding="utf-8").splitlines()
    places = [Path(row.split()[4]) for row in rows]
    return [place for place in places if place.is_relative_to(folder)]
