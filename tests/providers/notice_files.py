# SPDX-License-Identifier: Apache-2.0
"""A provider of notices by hand, and the files that it reads."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

from spotwatch.model import Answer, Notice
from spotwatch.providers import Context
from spotwatch.providers.file import Config, File
from spotwatch.testing import FakeClock, run_virtual

Ask = Callable[[], Answer]


def make(tmp_path: Path, ends_at: str = "") -> tuple[File, Ask]:
    """Return a provider, and a function that polls it once."""
    times = {"ends_at": ends_at} if ends_at else {}
    provider = File(Config(), Context(clock=FakeClock(), runtime_dir=tmp_path, policy_times=times))

    async def poll() -> Answer:
        return await provider.notices()

    return provider, lambda: run_virtual(poll())


def put(folder: Path, name: str, **row: object) -> Path:
    """Write a notice."""
    path = folder / name
    path.write_text(json.dumps(row), encoding="utf-8")
    return path


def only(answer: Answer) -> Notice:
    """Return the one notice of an answer."""
    [notice] = answer.notices
    return notice
