# SPDX-License-Identifier: Apache-2.0
"""What the Dockerfile reads: which libraries an image gets, and that each is pinned. It builds nothing."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
_FOLDER = ROOT / "deploy/container"


def _requirements(image: str) -> list[str]:
    done = subprocess.run(
        [sys.executable, str(_FOLDER / "requirements.py"), image],
        cwd=ROOT, capture_output=True, text=True, check=True,
    )  # fmt: skip
    return done.stdout.splitlines()


def _project() -> dict[str, object]:
    project: dict[str, object] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    return project


def test_the_daemons_image_gets_all_but_what_the_daemon_never_imports() -> None:
    """Its list is that of pyproject.toml without boto3 and requests, so that a new dependency is in."""
    everyones = _project()["dependencies"]
    assert isinstance(everyones, list)
    left_out = [line for line in everyones if line not in _requirements("daemon")]
    assert [re.split(r"\W", line)[0] for line in left_out] == ["boto3", "requests"]
    assert set(_requirements("full")) > set(everyones)


def test_an_unknown_image_is_refused() -> None:
    """The script ends with an error that names those there are."""
    with pytest.raises(subprocess.CalledProcessError) as failed:
        _requirements("smal")
    assert "have daemon, full" in failed.value.stderr


def test_every_requirement_is_pinned() -> None:
    """What pip is asked for has its version in constraints.txt; the rest is seen in the built image."""
    pins = (_FOLDER / "constraints.txt").read_text(encoding="utf-8")
    for line in _requirements("full"):
        assert f"\n{re.split('[<>=]', line)[0]}==" in pins


def test_the_label_says_the_version() -> None:
    """The Dockerfile's default is pyproject.toml's."""
    assert f"ARG VERSION={_project()['version']}\n" in (ROOT / "Dockerfile").read_text(encoding="utf-8")


def test_the_daemon_imports_nothing_that_its_image_lacks() -> None:
    """`spotwatch run`, with every provider there is, loads no boto3, no requests, nothing for mail."""
    script = (
        "import importlib, sys; from spotwatch import providers; import spotwatch.cli.run, spotwatch.daemon\n"
        "[importlib.import_module(f'spotwatch.providers.{name}') for name in providers.names()]\n"
        "print(*{name.partition('.')[0] for name in sys.modules})"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert not {"boto3", "botocore", "requests", "dkim", "dns", "cryptography"} & set(done.stdout.split())


@pytest.mark.parametrize("library", ["requests", "boto3"])
def test_a_library_that_is_left_out_is_named(library: str) -> None:
    """Where an image lacks it, a command ends with 2 and a line that names the other image."""
    command = {"requests": ["status"], "boto3": ["checkpoints", "list", "s3://bucket/run"]}[library]
    script = (
        f"import sys; sys.modules[{library!r}] = None; sys.argv = ['spotwatch', *{command!r}]\n"
        "from spotwatch.cli import main; main()"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr.startswith(f"spotwatch: this needs {library}, which is not installed here")
    assert done.stderr.count("\n") == 1
