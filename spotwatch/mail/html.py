# SPDX-License-Identifier: Apache-2.0
"""What a person sees of an HTML mail, and where its links go.

Not a browser: styles count where they stand on an element (`style=`, `hidden`), not in a style sheet, so
that text which only a sheet hides counts as seen. Addresses are shown, never fetched. The standard library's
parser is not used: it is quadratic in unclosed comments, and fails on numeric entities of 4,301 digits.
"""

from __future__ import annotations

import re
from html import unescape
from typing import NamedTuple

from spotwatch.mail.normalising import MAX_CHARACTERS, normalise
from spotwatch.mail.styles import Look, look

MAX_MARKS = 20_000
"""Tags, comments and attributes that are looked at; a newsletter has 2,000 to 8,000."""
_MAX_ADDRESS_CHARACTERS = 2_000

# Possessive, and told apart by the first character: one pass over a tag, whatever is in it.
_TAG = re.compile(
    r"""<(/?)([a-zA-Z][^\s/>]*+)
        ((?:[\s/]++ | [^\s/>=]++ | =\s*+(?:"[^"]*+" | '[^']*+' | [^\s>"'][^\s>]*+ | (?=>)))*+)
        >""",
    re.VERBOSE,
)
_ATTRIBUTE = re.compile(r"""([^\s/>=]++)\s*+(?:=\s*+("[^"]*+"|'[^']*+'|[^\s>"'][^\s>]*+))?""")
_TELLING = re.compile("style|hidden|href|color", re.IGNORECASE)
_COMMENT_END = re.compile("--!?>")
_BLANKS = re.compile(r"[ \t\r\n\f]+")
# `int` refuses 4,301 digits with a ValueError; no character has a number of eight.
_ENDLESS_ENTITY = re.compile(r"&#(?:[0-9]{8,}|[xX][0-9a-fA-F]{8,});?")

_UNSEEN_TEXT = frozenset({"script", "style", "title", "iframe", "noembed", "noframes", "xmp"})
_UNSEEN = frozenset({"template", "datalist"})
_VOID = frozenset(
    {"area", "base", "br", "col", "embed", "hr", "img", "input", "link", "meta", "param", "source", "track"}
    | {"wbr"}
)
_PARAGRAPHS = frozenset(
    {
        "p",
        "ul",
        "ol",
        "dl",
        "table",
        "pre",
        "textarea",
        "listing",
        "blockquote",
        "h1",
        "h2",
        "h3",
        "h4",
        "h5",
        "h6",
        "hr",
    }
)
_LINES = frozenset(
    {"address", "article", "aside", "body", "br", "caption", "center", "dd", "details", "div", "dt"}
    | {"fieldset", "figcaption", "figure", "footer", "form", "head", "header", "html", "legend", "li"}
    | {"main", "nav"}
    | {"option", "section", "summary", "tbody", "tfoot", "thead", "tr"}
)
_CELLS = frozenset({"td", "th"})
# Whose words these are, or that they no longer hold: they stand between quotation marks in the text.
_CITES = frozenset({"q", "s", "strike", "del", "samp"})
_QUOTES = ("blockquote", "pre", "textarea", "listing")
# An element whose end tag may be left out ends where one of these begins (HTML, section 13.1.2.4).
_CELL_ENDS = frozenset({"td", "th", "tr", "tbody", "tfoot", "thead"})
_ENDED_BY: dict[str, frozenset[str]] = {
    "p": (_LINES | _PARAGRAPHS) - {"br"},
    "li": frozenset({"li"}),
    "dt": frozenset({"dt", "dd"}),
    "dd": frozenset({"dt", "dd"}),
    "td": _CELL_ENDS,
    "th": _CELL_ENDS,
    "tr": _CELL_ENDS - _CELLS,
    "option": frozenset({"option"}),
}


_PLAIN = Look(hides=False, is_white=False, has_background=False)


class Page(NamedTuple):
    """What a page shows."""

    text: str
    """A block a line; quoted lines begin with `> `. Not normalised."""
    is_cut: bool
    """Whether something was left out for its size."""


def visible_text(html: str) -> str:
    """Return what a person sees of `html`, normalised: a block, a row or an item a line.

    What stands in `<blockquote>`, `<pre>` or a form's field begins with `> `, as in plain mail, and `<q>` or
    struck out words stand in quotation marks; a link's address has a line of its own.
    """
    return normalise(read_page(html).text)


def read_page(html: str, *, max_marks: int = MAX_MARKS) -> Page:
    """Return what a person sees of `html`, and whether that is all.

    Args:
        html: from anywhere; what no browser would show is left out as a browser leaves it out.
        max_marks: how many tags, comments and attributes to look at.
    """
    return _Reader(html, max_marks).read()


class _Reader:
    def __init__(self, html: str, max_marks: int) -> None:
        self._html = html
        self._marks_left = max_marks
        self._room = MAX_CHARACTERS
        self._lines: list[str] = []
        self._line: list[str] = []
        self._addresses: list[str] = []
        self._open: list[tuple[str, Look]] = []
        self._how_many_open: dict[str, int] = {}
        self._unseen = 0
        self._white = 0
        self._backgrounds = 0

    def read(self) -> Page:
        html, at = self._html, 0
        while at < len(html) and self._marks_left > 0 and self._room > 0:
            begin = html.find("<", at)
            if begin < 0:
                self._show(html[at:])
                at = len(html)
                break
            if begin > at:
                self._show(html[at:begin])
            at = self._read_mark(begin)
            self._marks_left -= 1
        self._end_line()
        return Page("\n".join(self._lines), at < len(html) or self._room <= 0)

    def _read_mark(self, begin: int) -> int:
        """Take in what begins with `<`; return where it ends, which is the end of the page if it has none."""
        html = self._html
        following = html[begin + 1 : begin + 2]
        if html.startswith("<!--", begin):
            end = _COMMENT_END.search(html, begin + 2)
            return end.end() if end else len(html)
        if tag := _TAG.match(html, begin):
            name = tag[2].lower()
            if tag[1]:
                self._end(name)
                return tag.end()
            self._start(name, tag[3])
            return self._after_unseen(name, tag.end()) if name in _UNSEEN_TEXT else tag.end()
        if following in ("!", "?", "/"):
            closing = html.find(">", begin)
            return closing + 1 if closing >= 0 else len(html)
        if following.isascii() and following.isalpha():
            return len(html)
        self._show("<")
        return begin + 1

    def _after_unseen(self, name: str, begin: int) -> int:
        end = re.compile(rf"</{name}(?=[\s/>])", re.IGNORECASE).search(self._html, begin)
        return end.start() if end else len(self._html)

    def _start(self, name: str, attributes: str) -> None:
        while self._open and name in _ENDED_BY.get(self._open[-1][0], ()):
            self._end(self._open[-1][0])
        seen, address = self._look_at(attributes) if _TELLING.search(attributes) else (_PLAIN, "")
        if name in _UNSEEN:
            seen = seen._replace(hides=True)
        if self._unseen == 0 and not seen.hides:
            self._break(name)
            if name in _CITES:
                self._line.append("\u201c")
            if name == "a" and address:
                self._addresses.append(address)
        if name not in _VOID:
            self._open.append((name, seen))
            self._how_many_open[name] = self._how_many_open.get(name, 0) + 1
            self._count(seen, 1)

    def _count(self, seen: Look, one: int) -> None:
        self._unseen += one * seen.hides
        self._white += one * seen.is_white
        self._backgrounds += one * seen.has_background

    def _end(self, name: str) -> None:
        if self._how_many_open.get(name, 0) == 0:
            return
        is_seen = self._unseen == 0
        if is_seen:
            if name in _CITES:
                self._line.append("\u201d")
            self._break(name)
        while True:
            ended, seen = self._open.pop()
            self._how_many_open[ended] -= 1
            self._count(seen, -1)
            if ended == name:
                return

    def _break(self, name: str) -> None:
        if name in _CELLS:
            self._line.append(" ")
        elif name in _LINES or name in _PARAGRAPHS:
            self._end_line()
            if name in _PARAGRAPHS:
                self._lines.append("")

    def _end_line(self) -> None:
        sign = "> " if any(self._how_many_open.get(name) for name in _QUOTES) else ""
        line = "".join(self._line)
        shown = [*line.split("\n"), *self._addresses] if line.strip() else self._addresses
        self._lines += [sign + row for row in shown]
        self._line, self._addresses = [], []

    def _show(self, text: str) -> None:
        if self._unseen or (self._white and not self._backgrounds):
            return
        # Twice the room: entities shrink, and what is left over is cut by the reader of the text.
        piece = _unescape(text[: 2 * self._room])
        if not self._how_many_open.get("pre"):
            piece = _BLANKS.sub(" ", piece)
        self._line.append(piece)
        self._room -= len(piece)

    def _look_at(self, attributes: str) -> tuple[Look, str]:
        """Return what the attributes do to their element, and the address that it links to."""
        seen: dict[str, str] = {}
        for found in _ATTRIBUTE.finditer(attributes):
            self._marks_left -= 1
            if self._marks_left <= 0:
                break
            value = found[2] or ""
            # The first of two counts, as in a browser.
            seen.setdefault(found[1].lower(), value[1:-1] if value[:1] in ('"', "'") else value)
        address = _unescape(seen.get("href", "")[:_MAX_ADDRESS_CHARACTERS]).strip()
        is_link = address.lower().startswith(("http://", "https://"))
        if is_link:
            self._room -= len(address)
        style = _unescape(seen.get("style", "")[:4096])
        if "bgcolor" in seen:
            style = f"background:{seen['bgcolor']};{style}"
        if "color" in seen:
            style = f"color:{seen['color']};{style}"
        looks = look(style)
        return looks._replace(hides=looks.hides or "hidden" in seen), "".join(
            address.split()
        ) if is_link else ""


def _unescape(text: str) -> str:
    return unescape(_ENDLESS_ENTITY.sub("\ufffd", text))
