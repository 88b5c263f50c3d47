# SPDX-License-Identifier: Apache-2.0
"""The pages of docs/integrations: each exists, begins with the lines to add, and names what was tested."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
FOLDER = ROOT / "docs/integrations"
TABLE = (FOLDER / "README.md").read_text(encoding="utf-8")
PAGES = sorted(path.name for path in FOLDER.glob("*.md") if path.name != "README.md")
# Of two screens, one has some fifty lines.
MOST_LINES = 110

_extras = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"][
    "optional-dependencies"
]
PINNED = dict(entry.split("==") for entry in _extras["trainers"] if "==" in entry)
PAGE_OF = {
    "accelerate": "accelerate.md",
    "lightning": "lightning.md",
    "peft": "peft.md",
    "transformers": "transformers.md",
    "trl": "transformers.md",
}


def test_the_table_has_a_row_for_each_page() -> None:
    """A page that nobody links is not found."""
    assert sorted(set(re.findall(r"\]\(([a-z-]+\.md)\)", TABLE))) == PAGES


@pytest.mark.parametrize("page", PAGES)
def test_a_page_begins_with_the_lines_to_add(page: str) -> None:
    """A program comes first, and it is one that uses us; the page is short."""
    text = (FOLDER / page).read_text(encoding="utf-8")
    before, program = re.split(r"^```python$", text, maxsplit=1, flags=re.MULTILINE)
    assert len(before.splitlines()) <= 6
    assert "## " not in before
    assert "from spotwatch.train" in program.split("```")[0]
    assert len(text.splitlines()) <= MOST_LINES


def test_every_pinned_library_has_a_page() -> None:
    """What is tested is said somewhere."""
    assert PINNED.keys() == PAGE_OF.keys()


@pytest.mark.parametrize("library", PINNED)
def test_the_versions_named_are_those_that_are_tested(library: str) -> None:
    """The page and the table name the version that the extra `trainers` pins."""
    wanted = re.compile(rf"\b{library}\b[^|\n]*{re.escape(PINNED[library])}")
    assert wanted.search(TABLE)
    page = (FOLDER / PAGE_OF[library]).read_text(encoding="utf-8")
    assert re.search(rf"(?<![\d.]){re.escape(PINNED[library])}(?![\d.]*\d)", page)
