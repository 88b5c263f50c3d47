# SPDX-License-Identifier: Apache-2.0
"""Verdicts: what passes, and that each single flaw is found, worded and enough to fail."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from spotwatch.drill import Outcome, cloud_document, document, problems
from spotwatch.drill.report import verdict_lines


def good(cloud: str = "aws", **changes: Any) -> Outcome:
    """Return the outcome of a reclaim that cost nothing, changed as told."""
    values: dict[str, Any] = {
        "cloud": cloud,
        "order_limit_seconds": 2.0,
        "has_status": True,
        "steps_lost": 0,
        "steps_twice": 0,
        "steps_skipped": 0,
        "first_exit_code": 75,
        "final_exit_code": 0,
        "bit_identical": True,
        "notice_to_order_seconds": 0.51239,
        "notice_to_saved_seconds": 0.9,
        "notice_to_exit_seconds": 12.0,
        "resume_seconds": 2.0,
        "orders": [("flush", "durable"), ("stop", "durable")],
    }
    return Outcome(**{**values, **changes})


def test_a_pass() -> None:
    """Nothing lost, 75 then 0, every bit the same: a pass, and the document says so."""
    got = document([good()], window_seconds=20)
    assert (got["version"], got["verdict"]) == (1, "pass")
    (cloud,) = got["clouds"]
    assert cloud | {"verdict": "pass"} == cloud
    assert cloud["notice_to_order_seconds"] == 0.512
    assert cloud["unknown"] == {}
    json.dumps(got)


@pytest.mark.parametrize(
    ("changes", "wanted"),
    [
        ({"steps_lost": 3}, "3 steps were done before the reclaim and lost"),
        ({"steps_twice": 3}, "3 steps were executed twice"),
        ({"steps_skipped": 1}, "1 steps were never executed"),
        ({"steps_lost": None}, "steps_lost is unknown"),
        ({"first_exit_code": 76}, "ended with 76; 75 says"),
        ({"first_exit_code": 0}, "ended with 0; 75 says"),
        ({"first_exit_code": None}, "first_exit_code is unknown"),
        ({"final_exit_code": 1}, "on the replacement the trainer ended with 1, not 0"),
        ({"final_exit_code": None}, "final_exit_code is unknown"),
        ({"bit_identical": False}, "the final tensors differ"),
        ({"bit_identical": None}, "bit_identical is unknown"),
        ({"notice_to_order_seconds": 2.01}, "the order came after 2.01 s; the limit is 2 s"),
        ({"notice_to_order_seconds": None}, "notice_to_order_seconds is unknown"),
        ({"notice_to_saved_seconds": None}, "notice_to_saved_seconds is unknown"),
        ({"resume_seconds": None}, "resume_seconds is unknown"),
        ({"orders": [("stop", "durable")]}, "a flush was expected before the stop"),
        ({"orders": [("flush", "durable")]}, "one stop was expected at the end; ordered: flush"),
        ({"orders": [("flush", ""), ("stop", "durable")]}, "answered with nothing, not durable"),
        ({"orders": [("flush", "durable"), ("stop", ""), ("stop", "")]}, "one stop was expected"),
        ({"orders": []}, "no order is in the daemon's journal"),
        ({"troubles": ["it rained"]}, "it rained"),
        ({"cloud": "gcp"}, "a stop at once was expected; ordered: flush, stop"),
    ],
)
def test_each_flaw_fails(changes: dict[str, Any], wanted: str) -> None:
    """One flaw in an otherwise perfect reclaim is found and is the only thing said."""
    (problem,) = problems(good(**changes))
    assert wanted in problem
    assert document([good(), good(**changes)], window_seconds=20)["verdict"] == "fail"


def test_no_cloud_is_no_pass() -> None:
    """A drill that rehearsed nothing has proved nothing."""
    assert document([], window_seconds=20)["verdict"] == "fail"


def test_a_stop_at_once() -> None:
    """Where the cloud leaves no time, one stop is all that is ordered."""
    assert problems(good("azure", orders=[("stop", "durable")])) == []


def test_of_a_users_trainer_less_can_be_known() -> None:
    """Of a trainer that only knows flag and signal some values are null, named, and excused."""
    own = good(
        is_own=True,
        has_status=False,
        steps_lost=None,
        steps_twice=None,
        bit_identical=None,
        notice_to_saved_seconds=None,
        resume_seconds=None,
        orders=[("flush", "acknowledged"), ("stop", "acknowledged")],
        unknown={"bit_identical": "nothing to compare with"},
    )
    got = cloud_document(own)
    assert got["verdict"] == "pass"
    assert set(got["unknown"]) == {
        "steps_lost",
        "steps_executed_twice",
        "bit_identical",
        "notice_to_saved_seconds",
        "resume_seconds",
    }
    assert got["unknown"]["bit_identical"] == "nothing to compare with"
    own.first_exit_code = None
    assert cloud_document(own)["verdict"] == "fail"


def test_for_people(tmp_path: Path) -> None:
    """A column a cloud, the reasons, the ends of the failed clouds' logs only, and last the verdict."""
    (tmp_path / "aws-1-trainer.log").write_text("old\n" * 20 + "Segmentation fault\n")
    (tmp_path / "gcp-1-trainer.log").write_text("all is well\n")
    (tmp_path / "aws-1-daemon.log").touch()
    outcomes = [good(steps_lost=2), good("gcp", orders=[("stop", "durable")])]
    lines = verdict_lines(document(outcomes, window_seconds=20), tmp_path)
    text = "\n".join(lines)
    assert lines[1].split() == ["aws", "gcp"]
    assert "aws: 2 steps were done before the reclaim and lost" in lines
    assert "Segmentation fault" in text
    assert text.count("old") == 11
    assert "(empty)" in text
    assert "all is well" not in text
    assert f"logs are kept in {tmp_path}" in lines
    assert lines[-1] == "FAIL: a reclaim on 1 of 2 clouds; see above for what was missed"


@pytest.mark.parametrize(
    ("changes", "wanted"),
    [
        (
            {},
            "PASS: a reclaim on 1 cloud, no step lost, none done twice, every bit as if nothing had happened",
        ),
        ({"is_own": True, "bit_identical": None}, "PASS: a reclaim on 1 cloud, no step lost"),
        (
            {"is_own": True, "bit_identical": None, "steps_lost": None},
            "PASS: a reclaim on 1 cloud, told in time, stopped as saved, finished on another machine",
        ),
    ],
)
def test_the_last_line_promises_no_more_than_was_seen(changes: dict[str, Any], wanted: str) -> None:
    """What is unknown is not claimed."""
    assert verdict_lines(document([good(**changes)], window_seconds=20), None)[-1] == wanted
