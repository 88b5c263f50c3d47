# SPDX-License-Identifier: Apache-2.0
"""What is special about meshes: parts that only some ranks have, stages, ties; what the start refuses."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.train.launching import ranks

pytest.importorskip("torch", reason="meshes are torch's")
pytestmark = pytest.mark.timeout(300)

GOOD = ("submesh", "stages", "plain_stages", "buffers", "tied", "number", "optimizers", "uneven")
REFUSED = {
    "same_name": r"under the name 'model': model/layer0 is on rank 0 only; model/layer1 is on rank 1 only",
    "mixed_meshes": "model/a is float32 (4, 3) S(0), R on a mesh of dp=2 x tp=2 on rank 0 and ",
    "partial": "keeper/sum: a DTensor that is a sum over ranks (Partial) cannot be saved",
    "strided": "the parts of a tensor overlap or leave something out",
}


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return where the cases are saved."""
    return tmp_path_factory.mktemp("cases")


@pytest.fixture(scope="module")
def told(base: Path) -> list[dict[str, Any]]:
    """Return what four ranks tell of all cases."""
    return ranks(4, "mesh_cases.py", base / "out", "mesh", base / "store", *GOOD, *REFUSED)


@pytest.mark.parametrize("case", GOOD)
def test_it_comes_back_to_the_last_bit(case: str, told: list[dict[str, Any]]) -> None:
    """Every tensor that a rank has a part of is as it was, and so are their names."""
    for rank in told:
        assert rank[case]["names"]
        assert rank[case]["same"]
        assert all(rank[case]["same"].values()), rank[case]


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_saved_is_refused_by_resume(case: str, told: list[dict[str, Any]]) -> None:
    """All ranks raise the same, and at the start, not at the first notice."""
    assert len({rank[case] for rank in told}) == 1 or case == "strided"
    for rank in told:
        assert rank[case].startswith("at resume: ConfigError: ")
        assert REFUSED[case] in rank[case]


def test_a_counter_of_steps_stays_a_plain_number(told: list[dict[str, Any]]) -> None:
    """Also where the parameter that it belongs to is one number on a mesh, and so has the same shape."""
    for rank in told:
        kinds = rank["number"]["kinds"]
        assert kinds["optimizer/state/0/step"] == "Tensor"
        assert kinds["optimizer/state/0/exp_avg"] == "DTensor"


def test_one_process_takes_all_stages(base: Path, told: list[dict[str, Any]]) -> None:
    """A pipeline whose stages lay on two ranks each goes on in one process that tracks both."""
    (one,) = ranks(1, "mesh_cases.py", base / "one", "plain", base / "store", "stages")
    assert len(one["stages"]["same"]) == 8
    assert all(one["stages"]["same"].values())
