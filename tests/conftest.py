# SPDX-License-Identifier: Apache-2.0
"""How the suite runs without torch, on a busy machine, and in any order: logging stays as it was.

Modules are left out only when asked by `TESTS_WITHOUT_TORCH=1` (`make test TORCH=no`), and named: where torch
is missing by mistake, those tests fail.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import structlog
from hypothesis import HealthCheck, settings

_TESTS = Path(__file__).parent
_LEFT_OUT = pytest.StashKey[list[str]]()


def pytest_configure(config: pytest.Config) -> None:
    """Begin with nothing left out, and let examples take the time that a busy machine needs."""
    config.stash[_LEFT_OUT] = []
    settings.register_profile("patient", deadline=None, suppress_health_check=(HealthCheck.too_slow,))
    settings.load_profile("patient")


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave out the trainer's side, and every other module of tests that speaks of torch."""
    if os.environ.get("TESTS_WITHOUT_TORCH") != "1" or collection_path.suffix != ".py":
        return None
    is_trainers = collection_path.is_relative_to(_TESTS / "train")
    if not is_trainers and "torch" not in collection_path.read_text(encoding="utf-8"):
        return None
    config.stash[_LEFT_OUT].append(str(collection_path.relative_to(_TESTS.parent)))
    return True


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Name what was left out."""
    for name in config.stash[_LEFT_OUT]:
        terminalreporter.write_line(f"left out, without torch: {name}")


@pytest.fixture(autouse=True)
def _logging_stays_as_it_was() -> Iterator[None]:
    """Take away what a command that ran in this process has set up: it would write into others' output."""
    root = logging.getLogger()
    level = root.level
    yield
    if structlog.is_configured():
        structlog.reset_defaults()
        for handler in [h for h in root.handlers if type(h).__module__ == "spotwatch.logs"]:
            root.removeHandler(handler)
        root.setLevel(level)
