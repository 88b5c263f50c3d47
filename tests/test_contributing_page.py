# SPDX-License-Identifier: Apache-2.0
"""That the provider in CONTRIBUTING.md, as printed there, keeps what the page promises of a provider."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from spotwatch.errors import Denied, Unavailable
from spotwatch.providers import Context
from spotwatch.testing import FakeClock

_ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def source() -> str:
    """Give the page's module: its blocks of Python, joined."""
    page = (_ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    return "\n\n".join(re.findall(r"```python\n(.*?)```", page, re.DOTALL))


@pytest.fixture
def example(source: str, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """Give the page's module, imported."""
    module = ModuleType("example")
    monkeypatch.setitem(sys.modules, "example", module)  # dataclasses look their module up
    exec(compile(source, "CONTRIBUTING.md", "exec"), module.__dict__)
    return module


def test_example_satisfies_our_own_checkers(source: str, tmp_path: Path) -> None:
    """What a newcomer copies passes lint and format as it is."""
    (tmp_path / "example.py").write_text(source)
    config = f"--config={_ROOT / 'pyproject.toml'}"
    for command in (
        ("ruff", "check", config, "--extend-ignore=INP001", "example.py"),
        ("ruff", "format", config, "--check", "example.py"),
    ):
        done = subprocess.run(
            [sys.executable, "-m", *command], cwd=tmp_path, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr


async def test_example_is_a_good_provider(example: ModuleType, tmp_path: Path) -> None:
    """Nothing, then one notice whose id and deadline stay; a failed poll says nothing; no cloud is here."""
    answers: list[tuple[int, str]] = [(200, ""), (200, "evt-1"), (200, "evt-1"), (403, ""), (500, "")]

    async def reclaim(_: web.Request) -> web.Response:
        status, body = answers.pop(0)
        return web.Response(status=status, text=body)

    app = web.Application()
    app.router.add_get("/reclaim", reclaim)
    clock = FakeClock()
    async with TestServer(app) as server:
        config = example.Config(endpoint=str(server.make_url("")).rstrip("/"))
        provider: Any = example.PROVIDER(config, Context(clock=clock, runtime_dir=tmp_path))
        async with provider:
            assert (await provider.notices()).notices == ()
            first = (await provider.notices()).notices[0]
            await clock.sleep(1)
            assert (await provider.notices()).notices == (first,)
            assert first.deadline is not None
            assert (first.deadline - first.seen_at).total_seconds() == 60
            for kind in (Denied, Unavailable):
                failed = await provider.notices()
                assert (failed.notices, failed.answered) == ((), frozenset())
                assert [type(error) for error in failed.failed.values()] == [kind]
            assert await provider.detect() is False
