# SPDX-License-Identifier: Apache-2.0
"""Keys and outputs as lines, and objects that are damaged or hostile: what is taken, what is refused."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest

from spotwatch.errors import CheckpointCorrupt, ConfigError
from spotwatch.train.done import rows
from spotwatch.train.done.kind import OneKind
from spotwatch.train.done.segment import Row, Segment, index_lines, index_to_bytes
from spotwatch.train.parts import crc32


class _Index:
    """A whole number as numpy has them."""

    def __index__(self) -> int:
        return 7


class _Text(str):
    """A text as some libraries have them."""

    __slots__ = ()


@pytest.mark.parametrize("key", ["a", "ключ\n\u2028 \x00", "\ud800", 0, -(2**63), 2**63 - 1, "x" * 1024])
@pytest.mark.parametrize(
    "output",
    [
        "text",
        "",
        None,
        True,
        1.5,
        -0.0,
        10**40,
        [1, [2]],
        {"a": {"b": None}},
        "\ud800 and \U0001f600",
        b"",
        b"\0\xff",
    ],
)
def test_what_is_stored_comes_back(key: rows.Key, output: Any) -> None:
    """Keys and outputs keep value and type, and a line is one line."""
    line = rows.to_line(rows.checked_key(key), output)
    assert line.count(b"\n") == 1
    assert line.endswith(b"\n")
    assert rows.key_in(line) == key
    found_key, found = rows.from_line(line)
    assert (found_key, type(found_key)) == (key, type(key))
    assert (found, type(found)) == (output, type(output))
    assert repr(found) == repr(output)  # minus zero too


def test_numbers_that_are_none_come_back() -> None:
    """A score that is NaN or infinite is the program's business, and no reason to lose an output."""
    _, found = rows.from_line(rows.to_line("k", [math.nan, math.inf, -math.inf]))
    assert math.isnan(found[0])  # type: ignore[index, arg-type]
    assert found[1:] == [math.inf, -math.inf]  # type: ignore[index]


def test_keys_of_other_libraries_are_plain_ones() -> None:
    """A whole number of numpy is an int, and a text of a class of its own a text."""
    assert type(rows.checked_key(_Index())) is int
    assert type(rows.checked_key(_Text("a"))) is str


@pytest.mark.parametrize(
    "key", ["", "x" * 1025, None, True, 1.0, b"a", ("a",), 2**63, -(2**63) - 1, _Text("")]
)
def test_keys_that_are_refused(key: object) -> None:
    """The error shows the key and says what to do."""
    with pytest.raises(ConfigError, match="key "):
        rows.checked_key(key)


@pytest.mark.parametrize(
    "output",
    [object(), {1, 2}, {"a": object()}, {b"a": 1}, pytest.param(10**5000, id="huge"), [bytearray(b"x")]],
)
def test_outputs_that_are_refused(output: object) -> None:
    """The error names the key."""
    with pytest.raises(ConfigError, match="output of key 'item-7'"):
        rows.to_line("item-7", output)


def test_an_output_that_holds_itself_is_refused() -> None:
    """So is one that is nested without end."""
    loop: list[Any] = []
    loop.append(loop)
    with pytest.raises(ConfigError, match="output of key 7"):
        rows.to_line(7, loop)


def test_an_output_that_is_too_large_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """It would be in memory several times; the error says where it belongs."""
    monkeypatch.setattr(rows, "MOST_OUTPUT_BYTES", 1000)
    rows.to_line("k", b"x" * 700)
    with pytest.raises(ConfigError, match="object of its own"):
        rows.to_line("k", b"x" * 800)


def test_ten_megabytes_come_back() -> None:
    """A picture is an output like any other."""
    picture = bytes(range(256)) * 40_000
    assert rows.from_line(rows.to_line("k", picture)) == ("k", picture)


def test_a_key_that_changes_its_type_is_refused() -> None:
    """7 is not "7": taken for another key, everything would be done again."""
    keys = OneKind()
    assert [keys.checked(7), keys.checked(8)] == [7, 8]
    with pytest.raises(
        ConfigError, match=r"'7' is text, but the keys of this list are a whole number, such as 7"
    ):
        keys.checked("7")


@pytest.mark.parametrize("key", ["\ud83d\ude00", "a\udbff\udfffb", _Text("\ud83d\ude00")])
def test_a_key_that_would_come_back_as_another_is_refused(key: str) -> None:
    """Two halves of a character become one in JSON, and each start would do the item again."""
    with pytest.raises(ConfigError, match="two halves"):
        OneKind().checked(key)
    whole = str(key).encode("utf-16", "surrogatepass").decode("utf-16")
    assert rows.key_in(rows.to_line(OneKind().checked(whole), 1)) == whole


@pytest.mark.parametrize("shares", [1, 2, 3, 64])
def test_shares_are_about_equal(shares: int) -> None:
    """And each key is in one of them."""
    counts = [0] * shares
    for number in range(10_000):
        counts[rows.share_of(f"item-{number}", shares)] += 1
    assert min(counts) > 10_000 / shares * 0.7
    assert rows.share_of("\ud800", shares) in range(shares)


def test_a_segment_comes_back() -> None:
    """As it was written."""
    segment = Segment("me", 3, (rows.to_line("a", 1), rows.to_line("b", b"\n\r")))
    assert Segment.from_bytes(segment.to_bytes()) == segment
    assert segment.keys() == ["a", "b"]


def test_each_flipped_bit_is_seen() -> None:
    """In whichever byte of a segment."""
    body = Segment("me", 3, (rows.to_line("a", 1),)).to_bytes()
    for at in range(len(body)):
        damaged = bytearray(body)
        damaged[at] ^= 4
        with pytest.raises(CheckpointCorrupt):
            Segment.from_bytes(bytes(damaged))


def _sealed(text: str) -> bytes:
    rest = f'",{text}'.encode()
    return b'{"crc32":"' + crc32(b'",' + text.encode()).encode() + rest


@pytest.mark.parametrize(
    "text",
    [
        '"format":"spotwatch-done","version":1,"what":"segment"}',
        '"format":"spotwatch-done","version":2,"what":"segment","writer":"","generation":1,"rows":0}',
        '"format":"spotwatch-done","version":1,"what":"index","rows":0}',
        '"format":"spotwatch-done","version":1,"what":"segment","writer":"","generation":"1","rows":0}',
        '"format":"spotwatch-done","version":1,"what":"segment","writer":"","generation":1,"rows":2}\n{"key":1}\n',
        "[" * 100_000,
        "",
    ],
)
def test_hostile_segments_are_refused(text: str) -> None:
    """With a checksum that is right, too."""
    body = _sealed(text)
    with pytest.raises(CheckpointCorrupt):
        Segment.from_bytes(body)


@pytest.mark.parametrize(
    "line",
    [
        *(b"", b"{}", b"[1]", b"\xff", b'{"key":' + b"[" * 100_000),
        *(b'{"key":null,"output":1}', b'{"key":true,"output":1}', b'{"key":[1],"output":1}'),
        *(b'{"key":"","output":1}', b'{"key":"a"}', b'{"key":"a","bytes":"?"}', b'{"key":"a","bytes":7}'),
    ],
)
def test_hostile_lines_are_refused(line: bytes) -> None:
    """None of them is taken for an output, or ends a start otherwise than as damage."""
    with pytest.raises(CheckpointCorrupt):
        rows.from_line(line)


@pytest.mark.parametrize(
    "row",
    ["{}", "[1,2,3]", '["1","n",3,[]]', '[1,"n",3,[null]]', '[1,"n",3,[true]]', '[1,"n",3,7]', "[" * 100_000],
)
def test_hostile_index_rows_are_refused(row: str) -> None:
    """An index is believed no more than a segment."""
    with pytest.raises(CheckpointCorrupt):
        Row.from_line(row.encode())


def test_an_index_comes_back() -> None:
    """With keys of both kinds."""
    found = [Row(1, "00000001.jsonl", 5, ("a", "\u2028")), Row(2, "00000002.jsonl", 5, (1, -2))]
    body = index_to_bytes([row.to_line() for row in found])
    assert [Row.from_line(line) for line in index_lines(body)] == found
    assert json.loads(body.splitlines()[0])["what"] == "index"
