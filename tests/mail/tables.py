# SPDX-License-Identifier: Apache-2.0
"""Tables of wordings, a line each, so that anybody can add one.

It holds no test.
"""

from __future__ import annotations

from pathlib import Path


def rows(name: str) -> list[str]:
    r"""Return the lines of a file beside this one, with line ends for `\n`, without its head."""
    lines = (Path(__file__).parent / name).read_text(encoding="utf-8").splitlines()
    return [line.replace("\\n", "\n") for line in lines if not line.startswith("# ")]


def pairs(name: str) -> list[tuple[str, str]]:
    """Return the lines of `subject | text`."""
    found = [row.partition(" | ") for row in rows(name)]
    return [(subject, text) for subject, _, text in found]
