# SPDX-License-Identifier: Apache-2.0
"""Patterns as data: the defaults, a user's file before them, and the mistakes that it may have."""

from __future__ import annotations

from pathlib import Path

import pytest

from spotwatch.errors import ConfigError
from spotwatch.mail.patterns import MAX_FILE_BYTES, MAX_PATTERNS, default_patterns, load_patterns
from spotwatch.mail.reading import read_mail
from spotwatch.mail.saying import read_words


def loaded(folder: Path, text: str) -> tuple[str, ...]:
    """Return the names of the patterns after a user's file was read."""
    return tuple(pattern.name for pattern in load_patterns(written(folder, text)).ordered)


def written(folder: Path, text: str) -> Path:
    """Return a file with that text."""
    path = folder / "patterns.toml"
    path.write_text(text, encoding="utf-8")
    return path


def mistakes(folder: Path, text: str) -> tuple[str, ...]:
    """Return what is said against a file."""
    with pytest.raises(ConfigError) as caught:
        load_patterns(written(folder, text))
    return caught.value.problems


def test_a_new_pattern_comes_before_the_defaults(tmp_path: Path) -> None:
    """It is the one that is named as the reason."""
    names = loaded(tmp_path, "[[pattern]]\nname = 'mine'\nsays = 'reclaim'\nregex = 'farewell'\n")
    assert names[0] == "mine"
    assert len(names) == len(default_patterns().ordered) + 1


def test_a_pattern_of_a_known_name_replaces_it(tmp_path: Path) -> None:
    """There is one of each name."""
    names = loaded(tmp_path, "[[pattern]]\nname = 'invoice'\nsays = 'other_notice'\nregex = 'bill'\n")
    assert names[0] == "invoice"
    assert sorted(names) == sorted(pattern.name for pattern in default_patterns().ordered)


def test_a_pattern_of_the_user_decides(tmp_path: Path) -> None:
    """A wording that the defaults do not know becomes known, in the place that it is for."""
    path = written(
        tmp_path,
        "[[pattern]]\nname = 'mine'\nsays = 'reclaim'\nregex = 'bids? farewell'\nunless = 'not yet'\n"
        "where = 'text'\n",
    )
    top = "From: a@digitalocean.com\nSubject: {}\n\n{}"
    for subject, text, said in (
        ("x", "We BID  farewell.", True),
        ("x", "We do not yet bid farewell.", False),
        ("We bid farewell", "x", False),
    ):
        words = read_words(read_mail(top.format(subject, text).encode()), load_patterns(path))
        assert ("reclaim" in words.own) is said


def test_common_words_are_added(tmp_path: Path) -> None:
    """In any case of letters, in NFKC."""
    words = load_patterns(written(tmp_path, "common_words = 'Gandalf \uff41-1'")).common_words
    assert {"gandalf", "a-1"} <= words
    assert default_patterns().common_words <= words


def test_an_empty_file_changes_nothing(tmp_path: Path) -> None:
    """All defaults hold."""
    assert load_patterns(written(tmp_path, "")) == default_patterns()


def test_the_default_names_are_unique_and_read_once() -> None:
    """They are data of the package."""
    names = [pattern.name for pattern in default_patterns().ordered]
    assert len(names) == len(set(names))
    assert default_patterns() is default_patterns()


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("nonsense", "no TOML"),
        ("patern = 1", "unknown key 'patern'"),
        ("pattern = 1", "write [[pattern]]"),
        ("pattern = [1]", "pattern 1 is no table"),
        ("common_words = ['a']", "common_words is no text"),
        ("[[pattern]]", "needs a name"),
        ("[[pattern]]\nname = 'A b'", "needs a name"),
        ("[[pattern]]\nname = 'a'\nsays = 'x'\nregex = 'y'", "says 'x'; use reclaim"),
        ("[[pattern]]\nname = 'a'\nsays = 'other'\nregex = 'y'", "says 'other'"),
        ("[[pattern]]\nname = 'a'\nsays = 'reclaim'", "regex is no expression"),
        ("[[pattern]]\nname = 'a'\nsays = 'reclaim'\nregex = ''", "regex is no expression"),
        ("[[pattern]]\nname = 'a'\nsays = 'reclaim'\nregex = '[b-a]'", "no regular expression"),
        ("[[pattern]]\nname = 'a'\nsays = 'reclaim'\nregex = '(a+)+'", "repeats without bound"),
        (
            "[[pattern]]\nname = 'a'\nsays = 'reclaim'\nregex = 'a'\nunless = '.*.*'",
            "unless: it can be tried",
        ),
        ("[[pattern]]\nname = 'a'\nsays = 'reclaim'\nregex = 'a'\nunless = 5", "unless is no expression"),
        ("[[pattern]]\nname = 'a'\nsays = 'reclaim'\nregex = 'a'\nwhere = 'body'", "where is 'body'"),
        ("[[pattern]]\nname = 'a'\nsays = 'reclaim'\nregex = 'a'\nwhen = 'b'", "unknown key 'when'"),
        (2 * "[[pattern]]\nname = 'a'\nsays = 'reclaim'\nregex = 'a'\n", "given twice"),
        ((MAX_PATTERNS + 1) * "[[pattern]]\n", "at most 200"),
        ("[[pattern]]\nname = 'a'\nsays = 'reclaim'\nregex = '" + 5000 * "(" + "'", "maximum recursion"),
        ("#" * (MAX_FILE_BYTES + 1), "more than"),
        ('"\\u202e" = 1', "\\u202e"),
    ],
)
def test_a_mistake_is_said_with_its_place(tmp_path: Path, text: str, problem: str) -> None:
    """What is wrong, and what to write."""
    said = "\n".join(mistakes(tmp_path, text))
    assert problem in said
    assert str(tmp_path) in said


def test_all_mistakes_are_said_at_once(tmp_path: Path) -> None:
    """One a line."""
    text = "[[pattern]]\nname = 'a'\nsays = 'x'\nregex = '('\n[[pattern]]\nname = 'b'\nsays = 'cancel'\n"
    assert len(mistakes(tmp_path, text)) == 3


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    """Missing, or not UTF-8."""
    with pytest.raises(ConfigError, match="No such file"):
        load_patterns(tmp_path / "none.toml")
    path = tmp_path / "latin.toml"
    path.write_bytes(b"common_words = '\xe9'")
    with pytest.raises(ConfigError, match="not UTF-8 at byte 16"):
        load_patterns(path)
