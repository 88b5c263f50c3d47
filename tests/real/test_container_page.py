# SPDX-License-Identifier: Apache-2.0
"""The commands of docs/container.md, run as printed, where `docker` is a podman of our own.

`docker build` is not among them: it runs with options of this machine's network, in tests/real/images.py.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.real import images
from tests.real.containers import Podman

pytestmark = [pytest.mark.real, pytest.mark.timeout(400)]


def test_the_page_from_start_to_removal(podman: Podman, image: str, tmp_path: Path) -> None:
    """The sidecar starts, `check` is content, looking at it works, and after the removal nothing is left."""
    podman("tag", image, "localhost/spotwatch:latest")
    page = (images.ROOT / "docs/container.md").read_text(encoding="utf-8")
    build, start, check, look, remove = re.findall(r"```bash\n(.*?)```", page, re.DOTALL)
    assert build == "docker build --tag spotwatch .\n"
    # In one script, since the network that stands for the machine's lives as long as it.
    watches = "until docker logs spotwatch 2>&1 | grep -q watching; do sleep 0.1; done\n"
    script = f"{start}timeout 60 bash -c '{watches}'\n{check}{look}{remove}"
    done = podman.shell(script, cwd=tmp_path, seconds=120)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("Nothing would fail") == 2
    assert "\n127.0.0.1:9475: ok\n" in done.stdout
    assert "spotwatch-" not in podman("volume", "ls").stdout
    assert podman("container", "exists", "spotwatch", check=False).returncode == 1
