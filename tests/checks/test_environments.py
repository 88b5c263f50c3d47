# SPDX-License-Identifier: Apache-2.0
"""A unit's environment as systemd reads it; the same file goes through a booted systemd in tests/real."""

from __future__ import annotations

import pytest

from spotwatch.checks.environments import read_environment_file, read_shown_environment

ENVIRONMENT_FILE = r"""# of mine; A=0
   ; another
SPOTWATCH_TARGET__0__PROCESS=python train.py
TRAIL=a b<>  	<>
LEAD=    x
KEY  = y
export EXPORTED=1
9BAD=1
NONE
EMPTY=
EMPTY_QUOTED=""
JOINED="a b" 'c d' e f
MIXED=a"b c"d
SINGLE='a\b $x' <>
DOUBLE="a\b \$x \"q\" \\ \`t \n"
LONG=one \
two
LONG_QUOTED="one \
two"
HASH=a # b
DOLLAR=$HOME ${X}
ESCAPED=a\ b\"c\n
ESCAPED_END=a\ <>
LINES="l1
l2"
UMLAUT=ä
CONTROL="""
# Blanks at the end of a line are hard to see and easy to lose.
ENVIRONMENT_FILE = ENVIRONMENT_FILE.replace("<>", "")
ENVIRONMENT_FILE += '\x1b[m\nOPEN="abc\ndef\n'
EXPECTED = {
    "SPOTWATCH_TARGET__0__PROCESS": "python train.py",
    "TRAIL": "a b",
    "LEAD": "x",
    "KEY": "y",
    "EMPTY": "",
    "EMPTY_QUOTED": "",
    "JOINED": "a bc de f",
    "MIXED": 'a"b c"d',
    "SINGLE": r"a\b $x",
    "DOUBLE": r'a\b $x "q" \ `t \n',
    "LONG": "one two",
    "LONG_QUOTED": "one two",
    "HASH": "a # b",
    "DOLLAR": "$HOME ${X}",
    "ESCAPED": 'a b"cn',
    "ESCAPED_END": "a ",
    "LINES": "l1\nl2",
    "UMLAUT": "ä",
    "CONTROL": "\x1b[m",
    "OPEN": "abc\ndef\n",
}


def test_a_file_is_read_as_systemd_reads_it() -> None:
    """Blanks need no quotes, a hash no escape, and what systemd leaves out is left out."""
    assert read_environment_file(ENVIRONMENT_FILE) == EXPECTED


@pytest.mark.parametrize("text", ["", "\n", "#", "A", "A=\\", 'A="\\', "=", "= x", "\\", "A='"])
def test_a_file_may_end_anywhere(text: str) -> None:
    """Half a line sets nothing, or nothing else than an empty value."""
    assert set(read_environment_file(text).values()) <= {"", "\\"}


def test_what_systemctl_shows_is_taken_apart() -> None:
    """Words with blanks, quotes and dollars are quoted there as no shell does it."""
    shown = r'"A=b c" "D=\$x" "Q=say \"hi\"" "N=a\nb" "BACK=c:\\d" "T=\`id\`" EMPTY= TILDE=~/a "ESC=\x1b"'
    assert read_shown_environment(shown) == {
        "A": "b c",
        "D": "$x",
        "Q": 'say "hi"',
        "N": "a\nb",
        "BACK": r"c:\d",
        "T": "`id`",
        "EMPTY": "",
        "TILDE": "~/a",
        "ESC": "\x1b",
    }
