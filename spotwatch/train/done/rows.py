# SPDX-License-Identifier: Apache-2.0
"""One item's key and output as one line of JSON, and back: which values are taken, how others are refused.

It keeps nothing. Reading makes plain values only. Standard library only.
"""

from __future__ import annotations

import base64
import json
import operator
import re
import zlib
from typing import Any

from spotwatch.errors import CheckpointCorrupt, ConfigError
from spotwatch.model import JSON

Key = str | int
Output = JSON | bytes

MOST_KEY_CHARACTERS = 1024
MOST_OUTPUT_BYTES = 64 * 2**20
"""Of one output as it is stored; bytes take a third more there."""
_MOST_NUMBER = 2**63
_MOST_SHOWN = 80
_BEGIN = b'{"key":'
_PAIR = re.compile("[\ud800-\udbff][\udc00-\udfff]")
"""Two halves of a character: JSON joins them."""
_encode = json.JSONEncoder(separators=(",", ":")).encode
_decoder = json.JSONDecoder()


def checked_key(key: object) -> Key:
    """Return `key` as a text or an int; whole numbers of numpy and torch are ints.

    Raises:
        ConfigError: it is neither, empty, longer than 1024 characters or 64 bits, or comes back otherwise.
    """
    kind = type(key)
    if kind is str:
        if not 0 < len(key) <= MOST_KEY_CHARACTERS:  # type: ignore[arg-type]  # it is a text
            raise ConfigError(
                f"key {shown(key)}: wants 1 to {MOST_KEY_CHARACTERS} characters; give each item a short name"
            )
        if _PAIR.search(key):  # type: ignore[call-overload]  # it is a text
            raise ConfigError(
                f"key {shown(key)} has a character as two halves (surrogates), which would come back as one: "
                'key.encode("utf-16", "surrogatepass").decode("utf-16") makes it one'
            )
        return key  # type: ignore[return-value]  # it is a text
    number = key if kind is int else _index(key)
    if number is None:
        if isinstance(key, str):
            return checked_key(str.__str__(key))
        raise ConfigError(
            f"key {shown(key)} is a {kind.__name__}: wants a text or a whole number, such as the item's id; "
            "pass key=, a function that returns it"
        )
    if not -_MOST_NUMBER <= number < _MOST_NUMBER:  # type: ignore[operator]  # it is an int
        raise ConfigError(f"key {shown(number)}: wants at most 64 bits; a longer one can be a text")
    return number  # type: ignore[return-value]  # it is an int


def share_of(key: Key, shares: int) -> int:
    """Return which of so many shares an item belongs to; the same on every machine."""
    return zlib.crc32(str(key).encode("utf-8", "surrogatepass")) % shares


def to_line(key: Key, output: object) -> bytes:
    """Return the line of one item, its end included.

    Raises:
        ConfigError: the output is no JSON value, text or bytes, or larger than `MOST_OUTPUT_BYTES`.
    """
    name = _encode(key)
    if isinstance(output, (bytes, bytearray, memoryview)):
        field, text = "bytes", f'"{base64.b64encode(output).decode("ascii")}"'
    else:
        try:
            field, text = "output", _encode(output)
        except (TypeError, ValueError, RecursionError) as error:
            raise ConfigError(
                f"output of key {shown(key)}: {error}; give JSON values, text or bytes (.item(), .tolist() "
                "and .tobytes() make them of arrays). What was added before is not lost"
            ) from error
    if len(text) > MOST_OUTPUT_BYTES:
        raise ConfigError(
            f"output of key {shown(key)} takes {len(text)} bytes, more than {MOST_OUTPUT_BYTES}; "
            "store it as an object of its own, and add its address and checksum here"
        )
    return f'{{"key":{name},"{field}":{text}}}\n'.encode("ascii")


def key_in(line: bytes) -> Key:
    """Return the key in a line, without reading the output.

    Raises:
        CheckpointCorrupt: there is none.
    """
    try:
        if not line.startswith(_BEGIN):
            raise ValueError("no key at its beginning")
        # A key has at most 1024 characters, each of at most twelve bytes in JSON.
        text = line[len(_BEGIN) : len(_BEGIN) + 12 * MOST_KEY_CHARACTERS + 64].decode("ascii")
        return _plain_key(_decoder.raw_decode(text)[0])
    except (ValueError, RecursionError, ConfigError) as error:
        raise CheckpointCorrupt(f"not a line of a done-list: {error}") from error


def from_line(line: bytes) -> tuple[Key, Output]:
    """Return key and output of a line.

    Raises:
        CheckpointCorrupt: it is no such line.
    """
    try:
        row: dict[str, Any] = json.loads(line)
        key = _plain_key(row["key"])
        if "bytes" in row:
            return key, base64.b64decode(row["bytes"], validate=True)
        return key, row["output"]
    except (ValueError, RecursionError, KeyError, TypeError, ConfigError) as error:
        raise CheckpointCorrupt(f"not a line of a done-list: {error!r}") from error


def shown(value: object) -> str:
    """Return a value for people, shortened."""
    try:
        text = repr(value)
    except ValueError:  # Python writes no whole number of more than 4,300 digits
        text = f"({type(value).__name__} of too many digits to show)"
    return text if len(text) <= _MOST_SHOWN else f"{text[:_MOST_SHOWN]}..."


def _plain_key(key: object) -> Key:
    if type(key) not in (str, int):
        raise ValueError(f"a key that is a {type(key).__name__}")
    return checked_key(key)


def _index(value: object) -> int | None:
    if isinstance(value, bool):
        return None
    try:
        return operator.index(value)  # type: ignore[arg-type]  # what is none is refused by it
    except TypeError:
        return None
