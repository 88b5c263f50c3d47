# SPDX-License-Identifier: Apache-2.0
"""The hostile and odd inputs that the way of a notice must bear, by number, and that each has a test.

A test says which it covers: `@pytest.mark.hostile(37)`. What becomes of an input is in the tests, not here.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

LIST = {
    1: "a body one byte too long, with and without its length said",
    2: "a compressed bomb",
    3: "a length that is negative, said twice, or beside chunks",
    4: "headers or a body that trickle, and peers that say nothing",
    5: "a thousand requests in one breath",
    6: "other methods, and paths that a proxy reads otherwise",
    7: "a signature that is missing, empty, endless, or sent twice",
    8: "a right signature under a body that differs by a blank",
    9: "the old key during a rotation, and after it",
    10: "a signed time that is no time, old, or ahead",
    11: "signatures of other forms, versions and numbers",
    12: "the same request many times at once",
    13: "a token that was used, with another mail",
    14: "a replay after a restart",
    15: "a memory of replays that is full",
    16: "a listener without a secret",
    17: "a clock that is an hour off and not set yet",
    18: "a peer that leaves in the middle",
    19: "forms in parts that are broken, many, nameless, or named like paths",
    20: "a form with the same field twice, or hundreds of fields",
    21: "JSON that parsers read in two ways, or choke on",
    22: "a character set that does not exist, and JSON called text",
    23: "JSON with other types than promised",
    24: "the two spellings of Postmark's attachments",
    25: "a character set of its own for each field of SendGrid",
    26: "a subscription to a stranger's topic, rightly signed",
    27: "a certificate's address elsewhere, or one that answers endlessly",
    28: "a signature version that is missing, unknown, or too old",
    29: "a message type that differs between header and body",
    30: "a message that is no JSON, on a topic of ours",
    31: "a service that doubts the mail itself",
    32: "headers that take a parser minutes",
    33: "headers that crash a parser",
    34: "character sets and encodings that are no such thing",
    35: "parts within parts within parts",
    36: "HTML that shows one thing and holds another",
    37: "a second header put before a genuine one",
    38: "a signature that covers the beginning of the body only",
    39: "a stranger's signature, and senders that look like DigitalOcean",
    40: "fifty signatures on one mail",
    41: "DNS that is silent, broken, endless, or goes in circles",
    42: "other mail by DigitalOcean, and other mail",
    43: "a genuine mail to another account, about a Droplet called as ours is",
    44: "a mail that a person has forwarded",
    45: "an automatic answer or a report that quotes a reclaim",
    46: "one mail by two services, and a mail without an id",
    47: "a mail that comes hours late",
    48: "cancels and corrections, before, after, and without the notice",
    49: "names within names, and names that are words",
    50: "hundreds of Droplets, and ours last, twice, or in a link only",
    51: "our number within other numbers",
    52: "a mail that names no Droplet",
    53: "times that are none, or have no zone that one can rely on",
    54: "several times, past and to come",
    55: "daylight saving, and clocks that jump",
    56: "texts that steer a terminal, a log, or a template",
    57: "names without end as labels of metrics",
    62: "a metadata service that is not there, silent, slow, or endless",
    63: "a metadata service whose answer is no id",
    64: "a metadata service that sends us elsewhere",
    65: "a metadata service that leaves keys out, or has IPv6 only",
    66: "a proxy in the environment",
    67: "a metadata service that refuses, throttles, or breaks, for long",
    68: "events of unknown kinds, without times, twice, or without number",
    69: "a mailbox whose object is empty, endless, forged, another's, or refused",
    70: "another machine's state on a copied disk",
}  # fmt: skip
"""58 to 61 are about flags and signals, which other tests hold; of 24, what ImprovMX posts is not heard (it
proves nothing and hands over no mail as it came), and Resend posts no mail at all."""

_TESTS = Path(__file__).parent


def _markers(tree: ast.AST) -> Iterator[ast.Call]:
    """Yield every `pytest.mark.hostile(...)` of a module, on tests, classes and parameters."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "pytest.mark.hostile":
            yield node


def _covered() -> dict[int, list[str]]:
    """Return for each number the places of its tests."""
    found: dict[int, list[str]] = {}
    for path in sorted(_TESTS.rglob("test_*.py")):
        text = path.read_text(encoding="utf-8")
        if "mark.hostile" not in text or path == Path(__file__):
            continue
        for marker in _markers(ast.parse(text)):
            place = f"{path.relative_to(_TESTS)}:{marker.lineno}"
            assert marker.args, f"{place}: name the number"
            assert not marker.keywords, f"{place}: numbers only"
            for argument in marker.args:
                assert isinstance(argument, ast.Constant), f"{place}: write the number itself"
                assert isinstance(argument.value, int), f"{place}: write the number itself"
                found.setdefault(argument.value, []).append(place)
    return found


@pytest.fixture(scope="module")
def covered() -> dict[int, list[str]]:
    """Return where each number is tested."""
    return _covered()


@pytest.mark.parametrize("number", LIST)
def test_each_of_them_has_a_test(covered: dict[int, list[str]], number: int) -> None:
    """Whoever removes the last one sees what is not held any more."""
    assert covered.get(number), f"{number}, {LIST[number]}: no test is marked with it"


def test_no_test_names_a_number_that_is_not_listed(covered: dict[int, list[str]]) -> None:
    """A slip of the pen does not count as covering anything."""
    unknown = {number: places for number, places in covered.items() if number not in LIST}
    assert unknown == {}
