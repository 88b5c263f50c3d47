# SPDX-License-Identifier: Apache-2.0
"""Durations as people write them, alone and as a click option."""

from __future__ import annotations

import click
import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from spotwatch.cli._durations import DURATION, parse_duration


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("90", 90),
        ("90s", 90),
        ("2m", 120),
        ("2h", 7200),
        ("0", 0),
        ("1.5m", 90),
        (" 20 s ", 20),
        ("0.25", 0.25),
    ],
)
def test_good_durations(text: str, seconds: float) -> None:
    """A number with s, m, h or nothing behind it is seconds."""
    assert parse_duration(text) == seconds


@pytest.mark.parametrize(
    "text", ["", "s", "-1", "+1", "1d", "1h30m", "nan", "inf", "1e3", "٣", "1,5", ".5", "1" * 10, "2 m s"]
)
def test_bad_durations(text: str) -> None:
    """Anything else is refused with what is wanted."""
    with pytest.raises(ValueError, match="is no duration; write 90, 90s, 2m or 2h"):
        parse_duration(text)


@given(st.text(max_size=12))
def test_any_text_is_a_number_or_refused(text: str) -> None:
    """No text does anything but give a finite, non-negative number or raise ValueError."""
    try:
        seconds = parse_duration(text)
    except ValueError:
        return
    assert 0 <= seconds < 1e13


@click.command()
@click.option("--window", type=DURATION, default="2m")
@click.option("--pause", type=DURATION, default=1.5)
def _show(window: float, pause: float) -> None:
    click.echo(f"{window} {pause}")


def test_option() -> None:
    """As an option type it takes text and numbers, and its error is a usage error."""
    runner = CliRunner()
    assert runner.invoke(_show, []).output == "120.0 1.5\n"
    assert runner.invoke(_show, ["--window", "3s"]).output == "3.0 1.5\n"
    refused = runner.invoke(_show, ["--window", "soon"])
    assert refused.exit_code == 2
    assert "'soon' is no duration" in refused.output
