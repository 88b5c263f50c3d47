# SPDX-License-Identifier: Apache-2.0
"""Expressions that could search too long are refused before they search at all."""

from __future__ import annotations

import re
import time

import pytest

from spotwatch.mail.regex_cost import MAX_COST, UNLIMITED, TooCostly, cost


@pytest.mark.parametrize(
    ("source", "ways"),
    [
        ("reclaim", 1),
        (r"\breclaim(?:ed|s)?\b", 2),
        ("a|b|c", 1),
        ("a|ab", 2),
        ("a|A", 2),
        ("[ab]|a", 2),
        ("x{3}", 1),
        ("x{0,80}", 81),
        ("x*", UNLIMITED + 1),
        ("x+y", UNLIMITED),
        (".{0,80}.{0,80}", 81 * 81),
        (r"spot\s+droplet *x", 1),
        ("(?:x{0,9}y){2}", 100),
        ("(?:ab|cd)+", UNLIMITED),
        ("(?<!x)a(?=b)", 1),
        (r"[\]a]b[]c]", 1),
        ("", 1),
    ],
)
def test_ways_are_counted(source: str, ways: int) -> None:
    """Gaps multiply, alternatives add, words of which only one can fit are one way."""
    assert cost(source) == ways


@pytest.mark.parametrize(
    ("source", "why"),
    [
        ("(a+)+$", "repeats without bound"),
        ("(?:a|aa)+$", "repeats without bound"),
        ("(?:a|A)*b", "repeats without bound"),
        ("(?:a?)+b", "repeats without bound"),
        ("(?:a{1,3}){1,50}", "too many ways"),
        (r"(?:\w+\s){0,3}x", "too many ways"),
        ("a?" * 25 + "a", "too many ways"),
        ("(?:a|a)" * 25 + "b", "too many ways"),
        (".*.*", "too many ways"),
        (r"(a)\1", "refers back"),
        ("(?P<x>a)(?P=x)", "use (?:...)"),
        ("(?i)a", "use (?:...)"),
        ("a(?#comment)", "use (?:...)"),
        ("a{3,1}", "wrong way round"),
        ("(a", "not closed"),
        ("a)", "not opened"),
        ("[a", "ends within"),
        ("a\\", "ends within"),
    ],
)
def test_what_is_too_costly_or_cannot_be_counted_is_refused(source: str, why: str) -> None:
    """With the reason, and what to write."""
    with pytest.raises(TooCostly, match=re.escape(why)):
        cost(source)


def test_the_costliest_that_is_accepted_searches_for_less_than_a_second() -> None:
    """At the bound, on a text of the greatest length that keeps it busy."""
    source = "a{0,100}a{0,100}b"
    assert MAX_COST * 0.8 < cost(source) <= MAX_COST
    expression = re.compile(source)
    began = time.process_time()
    assert expression.search("a" * UNLIMITED) is None
    assert time.process_time() - began < 1
