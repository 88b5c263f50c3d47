# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: INP001 - a script of the Dockerfile, not a module
"""What an image installs beside the package, read from pyproject.toml: `requirements.py daemon|full`.

The package's own list is for everyone who runs `pip install spotwatch`. The daemon's process needs less, and
an image that cannot read a bucket has no library that could. Versions are those of constraints.txt.
"""

from __future__ import annotations

import sys
import tomllib
from pathlib import Path

NOT_THE_DAEMONS = frozenset({"boto3", "requests"})
"""Trainers, relays and people's commands use these; rule 9 of the house keeps them out of the daemon."""


def requirements(pyproject: Path, target: str) -> list[str]:
    """Return the requirements of the image `target`, as pip reads them.

    Raises:
        ValueError: there is no such target.
    """
    project = tomllib.loads(pyproject.read_text(encoding="utf-8"))["project"]
    everyones: list[str] = project["dependencies"]
    if target == "daemon":
        return [line for line in everyones if line.partition(">")[0] not in NOT_THE_DAEMONS]
    if target == "full":
        return [*everyones, *project["optional-dependencies"]["mail"]]
    raise ValueError(f"there is no image {target!r}; have daemon, full")


if __name__ == "__main__":
    sys.stdout.writelines(f"{line}\n" for line in requirements(Path("pyproject.toml"), sys.argv[1]))
