# SPDX-License-Identifier: Apache-2.0
"""The benchmarks of saving and restoring run at a tiny size, with torch, and say what they promise."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

_BENCHMARKS = Path(__file__).parent.parent / "benchmarks"

# Each starts several processes that import torch.
pytestmark = pytest.mark.timeout(240)


def run(name: str, folder: Path, *options: str) -> tuple[dict[str, Any], str]:
    """Return what a benchmark writes, and what it tells people."""
    path = folder / "figures.json"
    command = [sys.executable, str(_BENCHMARKS / name), "--size", "tiny", "--json", str(path), *options]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout == ""
    document: dict[str, Any] = json.loads(path.read_bytes())
    return document, done.stderr


def test_saving_is_measured_both_ways(tmp_path: Path) -> None:
    """Each round of each variant has both ways, the floor and the ratios; the first one is told apart."""
    document, told = run("save.py", tmp_path, "--repeats", "1")
    assert set(document["variants"]) == {"fast", "boto3"}
    for variant in document["variants"].values():
        assert [sample["is_first"] for sample in variant["samples"]] == [True, False]
        for sample in variant["samples"]:
            ours = sample["ours"]
            assert ours["size_bytes"] > variant["state"]["tensor_bytes"]
            assert 0 < ours["stall_seconds"] <= ours["durable_seconds"]
            assert ours["memory_peak_bytes"] >= ours["memory_before_bytes"]
            assert sample["floor_seconds"] == pytest.approx(ours["size_bytes"] / 240e6)
            stalled = ours["stall_seconds"] + ours["later_stall_seconds"]
            assert sample["ratios"]["stall_ratio"] == sample["tutorial"]["stall_seconds"] / stalled
        middle = variant["ratios"]["stall_ratio"]
        assert middle["least"] <= middle["median"] <= middle["most"]
        assert variant["end"]["exit_code"] == 0
        # In each round a save by either way and the plain socket's bytes go through the sink.
        assert variant["sink"]["bytes"] > 3 * sum(
            sample["ours"]["size_bytes"] for sample in variant["samples"]
        )
    assert "times shorter" in told
    assert document["machine"]["cores"] > 0


def test_restoring_is_measured_and_checked(tmp_path: Path) -> None:
    """Each way restores every value in a fresh process, and is timed beside a plain socket."""
    document, told = run("restore.py", tmp_path, "--repeats", "1", "--ways", "tutorial,fast")
    (sample,) = document["samples"]
    assert set(sample) == {"tutorial", "fast", "socket"}
    # The trainer trained on after its save, and saved once more as it left its loop.
    assert sample["fast"]["step"] > 10_000_000
    assert sample["tutorial"]["step"] == 20_000_000
    assert all(done["seconds"] > 0 for done in sample.values())
    assert set(document["ways"]["fast"]) == {"seconds", "floor_ratio", "memory_ratio"}
    assert "restored after" in told


@pytest.mark.parametrize(
    ("name", "options", "reason"),
    [
        ("save.py", ["--variants", "slow"], "no variant 'slow'; have fast, boto3"),
        ("save.py", ["--repeats", "0"], "--repeats 0: wants at least 1"),
        ("restore.py", ["--ways", "slow"], "no way 'slow'; have tutorial, fast, boto3"),
        ("restore.py", ["--repeats", "0"], "--repeats 0: wants at least 1"),
    ],
)
def test_a_wrong_option_is_told_before_anything_runs(name: str, options: list[str], reason: str) -> None:
    """An option that cannot be used ends a benchmark at once, with 2 and what would do."""
    command = [sys.executable, str(_BENCHMARKS / name), *options]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert reason in done.stderr
