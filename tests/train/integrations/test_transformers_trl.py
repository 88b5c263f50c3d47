# SPDX-License-Identifier: Apache-2.0
"""TRL's trainers with the same callback, whole and with an adapter."""

from __future__ import annotations

import re
from typing import Any

import pytest

from tests.train.integrations.transformers_rows import PLAIN, Noted, at, run
from tests.train.launching import LAUNCH_SECONDS

pytest.importorskip("trl", reason="the trainers of TRL are what is tried here")
pytest.importorskip("peft", reason="and an adapter of PEFT in it")

pytestmark = pytest.mark.timeout(LAUNCH_SECONDS)

_ARGS = {"num_train_epochs": 2, "eval_strategy": "steps", "eval_steps": 2}
_CASES: list[dict[str, Any]] = [
    {"name": "sft", "kind": "sft", "args": _ARGS, "lives": [PLAIN, at(7), at(5), at(5, within="eval"), {}]},
    {"name": "lora", "kind": "lora", "args": _ARGS, "lives": [PLAIN, at(7), {}]},
    {
        "name": "also",
        "kind": "lora",
        "args": {"num_train_epochs": 1},
        "options": {"also": "*.base_layer.weight"},
        "lives": [PLAIN, at(7), {"shifts": 0.5}],
    },
    {"name": "dpo", "kind": "dpo", "args": {"num_train_epochs": 2}, "lives": [PLAIN, at(7), at(7), {}]},
    # Logs come after steps 3, 6, 9, 12: each life is left between two.
    {"name": "cpo", "kind": "cpo", "args": _ARGS, "lives": [PLAIN, at(3), at(5), {}]},
    {"name": "online", "kind": "online", "args": {"num_train_epochs": 1}, "lives": [PLAIN, at(3), at(5), {}]},
]


@pytest.fixture(scope="module")
def noted(tmp_path_factory: pytest.TempPathFactory) -> Noted:
    """Live all cases once."""
    return run(tmp_path_factory.mktemp("transformers"), _CASES)


@pytest.mark.parametrize("case", ["sft", "lora", "also", "dpo", "cpo", "online"])
def test_a_training_of_trl_is_one_training(noted: Noted, case: str) -> None:
    """Losses, logs and TRL's averages are those of an uninterrupted one, a moved reference model too."""
    noted.assert_same(case)
    assert set(noted.exits(case)[:-1]) == {75}


def test_of_a_model_with_an_adapter_the_adapter_is_saved(noted: Noted) -> None:
    """The base is not in the checkpoints: they are a tenth of those of the whole model."""
    sizes = {
        case: [int(size) for size in re.findall(rf"store/{case}/store/run/\S+, (\d+) bytes", noted.output)]
        for case in ("sft", "lora")
    }
    assert max(sizes["lora"]) * 10 < min(sizes["sft"])
