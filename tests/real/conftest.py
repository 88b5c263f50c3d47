# SPDX-License-Identifier: Apache-2.0
"""What the tests against real parts stand on: root, the tools of the machine, and places of their own.

It starts nothing of spotwatch. What is missing fails the run in CI (`CI=true`), where a skipped test would be
a promise that nobody keeps; elsewhere the test is skipped and says what it lacks.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.real import images
from tests.real.containers import Podman
from tests.real.machine import Machine
from tests.real.namespace import Namespace
from tests.real.spot_machine import SpotMachine


def _require(*tools: str) -> None:
    """Skip the test, or fail it in CI, unless we are root and have `tools`."""
    lacks = [tool for tool in tools if shutil.which(tool) is None]
    if os.geteuid() != 0:
        lacks.insert(0, "root")
    if not lacks:
        return
    if os.environ.get("CI") == "true":
        pytest.fail(f"in CI this must run, but it lacks {', '.join(lacks)}")
    pytest.skip(f"lacks {', '.join(lacks)}")


@pytest.fixture
def namespace() -> Iterator[Namespace]:
    """Give a network of its own that has 169.254.169.254 and no way out."""
    _require("ip", "iptables")
    with Namespace() as made:
        yield made


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    """Give a booted systemd with our units, on the files of this machine."""
    _require("systemd-nspawn", "nsenter", "systemctl")
    with Machine(tmp_path) as booted:
        yield booted


@pytest.fixture(scope="module")
def lasting_machine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machine]:
    """Give a booted systemd that the tests of one file share; it takes 2 s to boot."""
    _require("systemd-nspawn", "nsenter", "systemctl")
    with Machine(tmp_path_factory.mktemp("machine")) as booted:
        yield booted


@pytest.fixture
def spot(lasting_machine: Machine) -> SpotMachine:
    """Give that machine, with nothing on it of the tests before."""
    return SpotMachine(lasting_machine)


@pytest.fixture
def systemd_analyze() -> str:
    """Give the path of systemd's own checker."""
    _require("systemd-analyze")
    return shutil.which("systemd-analyze") or ""


@pytest.fixture
def caddy() -> str:
    """Give the path of the reverse proxy that the page on mail sets up."""
    _require("caddy")
    return shutil.which("caddy") or ""


@pytest.fixture(scope="session")
def podman() -> Iterator[Podman]:
    """Give a podman with an empty store of its own; half a second."""
    _require("podman", "runc", "mmdebstrap")
    # Not pytest's own folder: podman takes 50 characters at most, and several workers have longer ones.
    with Podman(Path(tempfile.mkdtemp(prefix="podman-"))) as made:
        yield made


@pytest.fixture(scope="session")
def image(podman: Podman) -> str:
    """Give the name of the image that the Dockerfile makes; a minute on a fresh checkout, then 5 s."""
    return images.load_image(podman, "daemon", images.IMAGE)


@pytest.fixture(scope="session")
def base_image(podman: Podman) -> str:
    """Give the name of an image with Python and Debian's shell, for trainers; 5 s, or as `image`."""
    return images.load_base(podman)
