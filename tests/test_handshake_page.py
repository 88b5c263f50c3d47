# SPDX-License-Identifier: Apache-2.0
"""That the scripts in docs/handshake.md do what the page says of them, as printed there."""

from __future__ import annotations

import contextlib
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
    _write_script(request.param, tmp_path)
    with subprocess.Popen(
        [*_INTERPRETERS[request.param], "script"],
        cwd=tmp_path,
        env={**os.environ, "SPOTWATCH_RUNTIME_DIR": str(tmp_path)},
    ) as process:
        yield process
        process.kill()


@pytest.mark.timeout(60)
def test_script_flushes_goes_on_and_stops(trainer: subprocess.Popen[bytes], tmp_path: Path) -> None:
    """The flag is answered by a save and a removal, twice; SIGTERM by a newer save and status 75."""
    progress = tmp_path / "progress"
    steps = []
    for _ in range(2):
        assert create_exclusively(tmp_path / FLAG, b"{}")
        _wait(lambda: not (tmp_path / FLAG).exists())
        steps.append(int(progress.read_text()))
    trainer.send_signal(signal.SIGTERM)
    assert trainer.wait(20) == 75
    steps.append(int(progress.read_text()))
    assert 0 < steps[0] < steps[1] <= steps[2]


@pytest.mark.timeout(60)
@pytest.mark.parametrize("language", sorted(_INTERPRETERS))
@pytest.mark.parametrize("way", ["trigger", "SIGTERM"])
def test_script_under_exec(language: str, way: str, tmp_path: Path) -> None:
    """A stop by hand, and one of exec itself: the last step is in the file, the status is the script's."""
    _write_script(language, tmp_path)
    command = ["exec", "--provider", "file", "--", *_INTERPRETERS[language], "script"]
    with _spotwatch(tmp_path, *command) as process:
        _wait(lambda: "watching" in (tmp_path / "log").read_text(), 20)
        assert create_exclusively(tmp_path / FLAG, b"{}")
        _wait(lambda: not (tmp_path / FLAG).exists())
        if way == "trigger":
            _put_stop(tmp_path)
        else:
            process.send_signal(signal.SIGTERM)
        assert process.wait(20) == 75
    assert int((tmp_path / "progress").read_text()) > 0
    assert "answer=acknowledged" in (tmp_path / "log").read_text()


@pytest.mark.timeout(60)
def test_script_beside_the_daemon(trainer: subprocess.Popen[bytes], tmp_path: Path) -> None:
    """Found by its pidfile, it is told of the stop, saves and leaves; only then the stop is answered."""
    (tmp_path / "pid").write_text(str(trainer.pid))
    command = ["run", "--provider", "file", "--pidfile", str(tmp_path / "pid"), "--exit-with-trainer"]
    with _spotwatch(tmp_path, *command) as process:
        _wait(lambda: "watching" in (tmp_path / "log").read_text(), 20)
        _put_stop(tmp_path)
        assert trainer.wait(20) == 75
        # How it ended is its parent's to know; that anything is durable, nobody has said.
        assert process.wait(20) == 76
    assert int((tmp_path / "progress").read_text()) > 0


def _write_script(language: str, folder: Path) -> None:
    script = re.search(rf"```{language}\n(.*?)```", _PAGE, re.DOTALL)
    assert script
    (folder / "script").write_text(script[1])


@contextlib.contextmanager
def _spotwatch(folder: Path, *arguments: str) -> Iterator[subprocess.Popen[bytes]]:
    environ = {k: v for k, v in os.environ.items() if not k.startswith("SPOTWATCH_")}
    places = {"SPOTWATCH_RUNTIME_DIR": str(folder), "SPOTWATCH_STATE_DIR": str(folder / "state")}
    with (
        (folder / "log").open("wb") as log,
        subprocess.Popen(
            [sys.executable, "-m", "spotwatch", *arguments],
            cwd=folder,
            env={**environ, **places, "SPOTWATCH_HTTP__LISTEN": "", "SPOTWATCH_LOG__FORMAT": "console"},
            stderr=log,
        ) as process,
    ):
        yield process
        process.kill()


def _put_stop(folder: Path) -> None:
    (folder / "notice").write_text('{"do": "stop", "deadline": null, "why": "a test"}')
    (folder / "notice").rename(folder / "notices" / "hand.json")


def _wait(condition: Callable[[], bool], seconds: float = 20) -> None:
    give_up_at = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < give_up_at
        time.sleep(0.01)
