# SPDX-License-Identifier: Apache-2.0
"""What systemd makes of a unit's Environment= and EnvironmentFile=, to the letter.

A shell reads such a file otherwise, and so does `shlex`: a blank in a value needs no quotes here, and `#` in
it begins no comment. Nothing is put into the environment. Sources: systemd.exec(5), EnvironmentFile=, and
`parse_env_file_internal` in systemd's src/basic/env-file.c; held to a booted systemd 252 in tests/real.
"""

from __future__ import annotations

import codecs
import re

_BLANKS = " \t\n\r"
_LINE_ENDS = "\n\r"
_COMMENTS = "#;"
_ESCAPED_IN_QUOTES = '"\\`$'
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")
_WORD = re.compile(r'"(?P<quoted>(?:[^"\\]|\\.)*)"|(?P<bare>[^\s"]+)', re.DOTALL)
_ESCAPE = re.compile(r"\\([0-7]{3}|x[0-9a-fA-F]{2}|.)", re.DOTALL)
_CONTROL_ESCAPES = frozenset("abfnrtv")


def read_environment_file(text: str) -> dict[str, str]:
    """Return what a file of EnvironmentFile= sets; what systemd leaves out is not in it.

    A comment that ends in a backslash does not go on in the next line, as of systemd 254; before, it did.
    """
    found: dict[str, str] = {}
    reader = _Reader(text)
    while not reader.is_over():
        if reader.peek() in _BLANKS:
            reader.take()
        elif reader.peek() in _COMMENTS:
            reader.skip_line()
        elif (key := reader.take_key()) is not None:
            value = reader.take_value()
            if _NAME.match(key):
                found[key] = value
    return found


class _Reader:
    """A place in the text, which only moves on."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0

    def is_over(self) -> bool:
        return self._at >= len(self._text)

    def peek(self) -> str:
        """Return the next character; a line's end where there is none."""
        return "\n" if self.is_over() else self._text[self._at]

    def take(self) -> str:
        taken = self.peek()
        self._at += 1
        return taken

    def skip_line(self) -> None:
        while self.take() not in _LINE_ENDS:
            pass

    def take_key(self) -> str | None:
        """Return what is before `=`; None, and the line is over, where it has none."""
        key = ""
        while (taken := self.take()) != "=":
            if taken in _LINE_ENDS:
                return None
            key += taken
        return key.rstrip(_BLANKS)

    def take_value(self) -> str:
        """Return a value: quoted parts joined, then the rest of the line as it is, less the blanks around."""
        value = ""
        while (taken := self.take()) not in _LINE_ENDS:
            if taken == "'":
                value += self._take_single_quoted()
            elif taken == '"':
                value += self._take_double_quoted()
            elif taken not in _BLANKS:
                self._at -= 1
                return value + self._take_bare()
        return value

    def _take_bare(self) -> str:
        value, kept = "", 0
        while (taken := self.take()) not in _LINE_ENDS:
            if taken == "\\":
                escaped = "" if self.is_over() else self.take()
                value += "" if escaped in _LINE_ENDS else escaped
                kept = len(value)
            else:
                value += taken
                kept = kept if taken in _BLANKS else len(value)
        return value[:kept]

    def _take_single_quoted(self) -> str:
        value = ""
        while not self.is_over() and (taken := self.take()) != "'":
            value += taken
        return value

    def _take_double_quoted(self) -> str:
        value = ""
        while not self.is_over() and (taken := self.take()) != '"':
            if taken != "\\" or self.is_over():
                value += taken
                continue
            escaped = self.take()
            if escaped != "\n":
                value += escaped if escaped in _ESCAPED_IN_QUOTES else f"\\{escaped}"
        return value


def read_shown_environment(text: str) -> dict[str, str]:
    """Return what `systemctl show --property=Environment` tells, whose words are quoted as for C."""
    words = (match["bare"] or _unescape(match["quoted"] or "") for match in _WORD.finditer(text))
    return {name: value for name, equals, value in (word.partition("=") for word in words) if equals}


def _unescape(text: str) -> str:
    return _ESCAPE.sub(_unescape_one, text)


def _unescape_one(match: re.Match[str]) -> str:
    escape = match[1]
    if len(escape) > 1 or escape in _CONTROL_ESCAPES:
        return codecs.decode(f"\\{escape}", "unicode_escape")
    return escape
