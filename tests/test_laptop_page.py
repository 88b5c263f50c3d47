# SPDX-License-Identifier: Apache-2.0
"""That docs/laptop.md can be followed as printed: what it needs is said first, and what it shows comes true.

The reclaim by hand takes minutes; the drill's tests play the same.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

_ROOT = Path(__file__).parents[1]
_BIN = Path(sys.executable).parent


def blocks(page: str) -> list[str]:
    """Return the blocks of shell on a page."""
    text = (_ROOT / page).read_text(encoding="utf-8")
    return re.findall(r"```bash\n(.*?)```", text, re.DOTALL)


def test_the_environment_comes_before_what_needs_it() -> None:
    """A shell that has run `make` knows no `spotwatch` yet: both pages say how it gets one."""
    found = blocks("docs/laptop.md")
    names = ("spotwatch ", "python ", "sh on-a-machine")
    first = next(i for i, block in enumerate(found) if block.startswith(names))
    assert found[:first] == ["make demo\n", ". .venv/bin/activate\n"]
    before, made, _ = (_ROOT / "README.md").read_text(encoding="utf-8").partition("`. .venv/bin/activate`")
    assert made
    assert "make demo" in before
    assert "\nspotwatch " not in before


def wait(condition: Callable[[], bool], seconds: float = 30.0) -> None:
    """Return when `condition` holds."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.05)


@pytest.mark.timeout(120)
@pytest.mark.skipif(not (_BIN / "spotwatch").exists(), reason="needs spotwatch installed beside this Python")
def test_a_notice_by_hand_as_printed(tmp_path: Path) -> None:
    """The first terminal's daemon takes the second's notice, shows it, and hears that it is gone."""
    daemon_script, by_hand = blocks("docs/laptop.md")[-3:-1]
    assert daemon_script.startswith("spotwatch run")
    assert "spotwatch trigger flush" in by_hand
    environ = {
        "PATH": f"{_BIN}:{os.environ['PATH']}",
        "HOME": str(tmp_path),
        "SPOTWATCH_RUNTIME_DIR": str(tmp_path / "run"),
        "SPOTWATCH_STATE_DIR": str(tmp_path / "state"),
        "SPOTWATCH_HTTP__LISTEN": "",
    }
    log = tmp_path / "log"
    with (
        log.open("wb") as output,
        subprocess.Popen(
            ["bash", "-ec", f"exec {daemon_script}"], env=environ, stdout=output, stderr=output
        ) as daemon,
    ):
        try:
            wait(lambda: "watching" in log.read_text())
            done = subprocess.run(
                ["bash", "-ec", by_hand], env=environ, capture_output=True, text=True, check=True, timeout=60
            )
            wait(lambda: "withdrawn" in log.read_text())
        finally:
            daemon.terminate()
    order = json.loads((tmp_path / "run" / "order.json").read_text())
    assert (order["seq"], order["do"]) in ((1, "flush"), (2, "none"))
    assert "file flush, no deadline" in done.stdout
    assert "takes the notice as withdrawn" in done.stdout
