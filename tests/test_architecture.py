# SPDX-License-Identifier: Apache-2.0
"""The habits of the house that no linter knows: what every file begins with, and what stays out of where.

Who may import whom is said once, in pyproject.toml, and checked by import-linter.
"""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from pathlib import Path

import pytest

from spotwatch import providers

_ROOT = Path(__file__).parents[1]
_LONGEST_FILE_LINES = 350
_HEAVY = {"boto3", "botocore", "requests", "torch", "rich"}
_TRAINER_MAY_IMPORT = {"model", "errors", "clock", "handshake", "safe_files", "interval", "train"}


def _ids(paths: list[Path]) -> list[str]:
    return [str(path.relative_to(_ROOT)) for path in paths]


_PACKAGE = sorted((_ROOT / "spotwatch").rglob("*.py"))
_TRAIN = [path for path in _PACKAGE if "train" in path.relative_to(_ROOT).parts]
_PROVIDERS = [path for path in (_ROOT / "spotwatch/providers").glob("*.py") if not path.name.startswith("_")]
_PLUGINS = [path for path in _PACKAGE if path.parent.name in {"providers", "actions"}]
_ALL = _PACKAGE + sorted(
    path for folder in ("tests", "benchmarks", "examples") for path in (_ROOT / folder).rglob("*.py")
)


@pytest.mark.parametrize("path", _ALL, ids=_ids(_ALL))
def test_file_names_its_licence_and_says_what_it_knows(path: Path) -> None:
    """A reader of one file alone learns its licence and its purpose first."""
    text = path.read_text(encoding="utf-8")
    lines = text.removeprefix("#!/usr/bin/env python3\n").splitlines()
    assert lines[0] == "# SPDX-License-Identifier: Apache-2.0"
    assert ast.get_docstring(ast.parse(text)), "no module docstring"


@pytest.mark.parametrize("path", _PACKAGE, ids=_ids(_PACKAGE))
def test_file_holds_one_idea(path: Path) -> None:
    """A file of the package that grows past 350 lines is two ideas."""
    assert len(path.read_text(encoding="utf-8").splitlines()) <= _LONGEST_FILE_LINES


@pytest.mark.parametrize("path", _TRAIN, ids=_ids(_TRAIN))
def test_trainer_side_imports_nothing_of_the_daemon(path: Path) -> None:
    """A list of what is allowed, so that a module of the daemon that is added later is forbidden at once."""
    parts = {name.split(".")[1] for name in _imports_of_ours(path)}
    assert parts <= _TRAINER_MAY_IMPORT


@pytest.mark.parametrize("path", _PLUGINS, ids=_ids(_PLUGINS))
def test_providers_and_actions_know_nothing_of_their_neighbours(path: Path) -> None:
    """One of them takes from its folder only what the folder itself offers and private helpers."""
    folder = f"spotwatch.{path.parent.name}."
    names = [name.removeprefix(folder) for name in _imports_of_ours(path) if name.startswith(folder)]
    modules = {module.stem for module in path.parent.glob("*.py")}
    neighbours = {name.split(".")[0] for name in names} & modules
    assert all(name.startswith("_") for name in neighbours)


@pytest.mark.parametrize("path", _PROVIDERS, ids=_ids(_PROVIDERS))
def test_provider_module_ends_with_its_class(path: Path) -> None:
    """The last statement of a provider's module is `PROVIDER = <Class>`, by which its name finds it."""
    last = ast.parse(path.read_text(encoding="utf-8")).body[-1]
    assert isinstance(last, ast.Assign)
    assert ast.unparse(last).startswith("PROVIDER = ")


@pytest.mark.parametrize("name", providers.names())
def test_provider_offers_what_the_frame_asks_for(name: str) -> None:
    """Name, config class and the meaning of absence can be read from the class, without a machine."""
    found = providers.load(name)
    assert found.name == name
    assert isinstance(found.config_class(), found.config_class)
    assert isinstance(found.absence_withdraws, bool)


def test_daemon_process_stays_small() -> None:
    """A daemon with every provider loaded has imported none of the heavy packages."""
    code = (
        "import importlib, json, pkgutil, sys\n"
        "import spotwatch.daemon, spotwatch.providers as providers, spotwatch.actions as actions\n"
        "[importlib.import_module(f'{p.__name__}.{m.name}') for p in (providers, actions)\n"
        "    for m in pkgutil.iter_modules(p.__path__)]\n"
        "print(json.dumps(sorted({name.split('.')[0] for name in sys.modules})))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert _HEAVY.isdisjoint(json.loads(done.stdout))


def test_import_of_the_package_costs_a_trainer_nothing() -> None:
    """`import spotwatch` brings in no module beyond the package itself."""
    code = "import sys; before = set(sys.modules); import spotwatch; print(*(set(sys.modules) - before))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["spotwatch"]


def _imports_of_ours(path: Path) -> list[str]:
    """Return the dotted names below `spotwatch` that `path` imports, wherever in the file."""
    names: list[str] = []
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names += [f"{node.module}.{alias.name}" for alias in node.names]
    return [name for name in names if name.startswith("spotwatch.")]
