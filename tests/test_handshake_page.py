# SPDX-License-Identifier: Apache-2.0
"""That the scripts in docs/handshake.md do what the page says of them, as printed there."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from spotwatch.handshake import FLAG
from spotwatch.safe_files import create_exclusively

_PAGE = (Path(__file__).parents[1] / "docs" / "handshake.md").read_text(encoding="utf-8")
_INTERPRETERS = {"bash": ["bash"], "python": [sys.executable]}


@pytest.fixture(params=sorted(_INTERPRETERS))
def trainer(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Run the page's script of that language in a folder of its own; the runtime directory is there too."""
    script = re.search(rf"```{request.param}\n(.*?)```", _PAGE, re.DOTALL)
    assert script
    (tmp_path / "script").write_text(script[1])
    with subprocess.Popen(
        [*_INTERPRETERS[request.param], "script"],
        cwd=tmp_path,
        env={**os.environ, "SPOTWATCH_RUNTIME_DIR": str(tmp_path)},
    ) as process:
        yield process
        process.kill()


def test_script_flushes_goes_on_and_stops(trainer: subprocess.Popen[bytes], tmp_path: Path) -> None:
    """The flag is answered by a save and a removal, twice; SIGTERM by a newer save and status 75."""
    progress = tmp_path / "progress"
    steps = []
    for _ in range(2):
        assert create_exclusively(tmp_path / FLAG, b"{}")
        _wait(lambda: not (tmp_path / FLAG).exists())
        steps.append(int(progress.read_text()))
    trainer.send_signal(signal.SIGTERM)
    assert trainer.wait(5) == 75
    steps.append(int(progress.read_text()))
    assert 0 < steps[0] < steps[1] <= steps[2]


def _wait(condition: Callable[[], bool]) -> None:
    give_up_at = time.monotonic() + 5
    while not condition():
        assert time.monotonic() < give_up_at
        time.sleep(0.01)
