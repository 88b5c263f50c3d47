# SPDX-License-Identifier: Apache-2.0
"""Ranks whose loops end at different steps, as with uneven data: they save together, and end together."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from spotwatch.train.registry.registry import Registry
from spotwatch.train.stores.directory import DirectoryStore
from tests.train.launching import ranks
from tests.train.workers.torchrun_train import EVERY_STEPS

pytest.importorskip("torch")


@pytest.mark.timeout(240)
def test_loops_of_different_length_save_together(tmp_path: Path) -> None:
    """With uneven data the rank that is done takes part in the others' saves, and all end in a last one."""
    where = (tmp_path / "store", tmp_path / "runtime", "loose", 3 * EVERY_STEPS - 10)
    told = ranks(2, "torchrun_train.py", tmp_path / "out", *where)
    assert [(rank["left"], rank["status"]) for rank in told] == [(140, 0), (70, 0)]
    registry = Registry(DirectoryStore(tmp_path / "store" / "run"), "run")
    counts: dict[int, list[int]] = {}
    for found in registry.checkpoints():
        states: Any = registry.manifest(found.dir).state.values()
        counts[found.order[1]] = [state["objects"]["count"]["at"] for state in states]
    assert 140 in counts
    assert counts == {step: [step, min(step, 70)] for step in counts}
