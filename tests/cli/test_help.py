# SPDX-License-Identifier: Apache-2.0
"""What `--help` says, word for word, and that saying it costs nothing.

`UPDATE_GOLDEN=1 pytest tests/cli/test_help.py` writes tests/golden/help.txt anew; read the difference.
"""

from __future__ import annotations

import functools
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from spotwatch.cli import _COMMANDS, cli

_GOLDEN = Path(__file__).parents[1] / "golden" / "help.txt"
_WIDTH = 80
_RULE = "=" * _WIDTH
_PAGES = ("", *_COMMANDS)


@functools.cache
def page(name: str) -> str:
    """Return what `spotwatch NAME --help` prints, in a process of its own.

    click remembers a command's help option from its first use, which here may have been another test's.
    """
    code = f"from spotwatch.cli import cli; cli(prog_name='spotwatch', terminal_width={_WIDTH})"
    argv = [sys.executable, "-c", code, *filter(None, [name]), "--help"]
    return subprocess.run(argv, capture_output=True, text=True, check=True).stdout


def title(name: str) -> str:
    """Return the line above a page in the golden file."""
    return f"{_RULE}\n$ spotwatch {f'{name} ' if name else ''}--help\n"


@pytest.fixture(scope="module")
def golden() -> str:
    """Give the golden file, written anew when that is wanted."""
    if os.environ.get("UPDATE_GOLDEN"):
        _GOLDEN.parent.mkdir(exist_ok=True)
        _GOLDEN.write_text("".join(f"{title(name)}{page(name)}" for name in _PAGES), encoding="utf-8")
    return _GOLDEN.read_text(encoding="utf-8")


@pytest.mark.parametrize("name", _PAGES)
def test_help_is_what_was_agreed(name: str, golden: str) -> None:
    """A changed option, default or sentence is seen by whoever reviews the golden file."""
    _, _, rest = golden.partition(title(name))
    assert page(name) == rest.partition(_RULE)[0]


@pytest.mark.parametrize("name", _COMMANDS)
def test_help_shows_an_example(name: str) -> None:
    """Each command is shown in use, on a line of its own."""
    lines = [line.strip() for line in page(name).splitlines()]
    assert any(f"spotwatch {name} " in line or line.endswith(f"spotwatch {name}") for line in lines[1:])


def test_list_of_commands_imports_none_of_them() -> None:
    """`spotwatch --help` answers at once: nothing of HTTP, S3 or the daemon is imported for it."""
    code = (
        "import json, sys\n"
        "from spotwatch.cli import cli\n"
        "try:\n    cli(['--help'])\nexcept SystemExit:\n    pass\n"
        "print(json.dumps(sorted({name.split('.')[0] for name in sys.modules})), file=sys.stderr)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert {"aiohttp", "boto3", "requests", "cattrs", "asyncio"}.isdisjoint(json.loads(done.stderr))


def test_unknown_command_is_a_usage_error() -> None:
    """A misspelt command exits 2 and imports nothing."""
    result = CliRunner().invoke(cli, ["chekc"])
    assert result.exit_code == 2
    assert "chekc" in result.output
