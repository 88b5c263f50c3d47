# SPDX-License-Identifier: Apache-2.0
"""A Trainer on two processes: one is told to stop, both leave at the same step, and go on as one training."""

from __future__ import annotations

from typing import Any

import pytest

from tests.train.integrations.transformers_rows import PLAIN, Noted, at, run
from tests.train.launching import LAUNCH_SECONDS

pytest.importorskip("transformers", reason="the Trainer of transformers is what is tried here")

pytestmark = pytest.mark.timeout(LAUNCH_SECONDS)

_ARGS: dict[str, Any] = {
    "num_train_epochs": 2,
    "ddp_backend": "gloo",
    "eval_strategy": "steps",
    "eval_steps": 2,
}
_FSDP2 = {
    "fsdp": True,
    "fsdp_config": {
        "version": 2,
        "auto_wrap_policy": "TRANSFORMER_BASED_WRAP",
        "transformer_layer_cls_to_wrap": ["GPT2Block"],
    },
}
_UNSEEDED = {"accelerator_config": {"use_seedable_sampler": False}}
_DISPATCHED = {"accelerator_config": {"dispatch_batches": True}}
_MORE = {"noise": True, "count": 44}
_STEPS_AN_EPOCH = 6
_LIVES = [PLAIN, at(7, rank=1), at(2, within="eval", rank=1), {}]
_CASES: list[dict[str, Any]] = [
    {"name": "ddp", "args": _ARGS, "data": {"noise": True, "count": 44}, "lives": _LIVES},
    {"name": "fsdp2", "args": _ARGS | _FSDP2, "data": {"count": 44}, "lives": _LIVES},
    *(
        {"name": name, "args": _ARGS | given, "data": _MORE, "lives": [PLAIN, at(count, rank=1), {}]}
        for name, given, count in (("unseeded", _UNSEEDED, 14), ("dispatched", _DISPATCHED, 4))
    ),
    {
        "name": "frozen",
        "switches": 2,
        "args": _ARGS | {"ddp_find_unused_parameters": True},
        "lives": [PLAIN, at(7, rank=1), {}],
    },
    {"name": "frozen-sharded", "switches": 2, "args": _ARGS | _FSDP2, "lives": [at(7, rank=1), {}]},
    {
        "name": "workers",
        "args": _ARGS | {"dataloader_num_workers": 1},
        "data": {"count": 44},
        "lives": [PLAIN, at(7, "GROUP", rank=1), {}],
    },
    {"name": "told", "held": "told", "args": _ARGS, "lives": [PLAIN, at(8, rank=1), {}]},
]


@pytest.fixture(scope="module")
def noted(tmp_path_factory: pytest.TempPathFactory) -> Noted:
    """Live all cases once."""
    return run(tmp_path_factory.mktemp("transformers"), _CASES, ranks=2)


@pytest.mark.parametrize("case", ["ddp", "fsdp2"])
@pytest.mark.parametrize("rank", [0, 1])
def test_two_processes_are_one_training(noted: Noted, case: str, rank: int) -> None:
    """SIGTERM to the second one: losses, data, rates, logs and weights are those of an uninterrupted one."""
    noted.assert_same(case, rank=rank)
    assert noted.exits(case, rank=rank) == [75, 75, 0]
    assert [row["sharded"] for row in noted.all(case, "end", rank=rank)] == [case == "fsdp2"] * len(_LIVES)


@pytest.mark.parametrize("case", ["unseeded", "dispatched"])
@pytest.mark.parametrize("rank", [0, 1])
def test_accelerates_own_orders_are_the_same(noted: Noted, case: str, rank: int) -> None:
    """With a generator that Accelerate gives the sampler, and where one process reads for both."""
    noted.assert_same(case, rank=rank)
    assert noted.exits(case, rank=rank) == [75, 0]
    assert len(noted.steps(case, "train", life=2, rank=rank)) % _STEPS_AN_EPOCH, (
        "it was to stop within an epoch"
    )


@pytest.mark.parametrize("rank", [0, 1])
def test_workers_of_one_process_outlive_what_tells_it_to_stop(noted: Noted, rank: int) -> None:
    """A signal to one process and its workers stops both processes, and they go on as one training."""
    noted.assert_same("workers", rank=rank)
    assert noted.exits("workers", rank=rank) == [75, 0]


@pytest.mark.parametrize("rank", [0, 1])
def test_a_sampler_that_is_told_the_epoch_is_told_it_again(noted: Noted, rank: int) -> None:
    """Below all that passes over batches, where Accelerate does not reach it."""
    noted.assert_same("told", rank=rank)
    assert noted.exits("told", rank=rank) == [75, 0]


@pytest.mark.parametrize("rank", [0, 1])
def test_what_was_frozen_stays_frozen(noted: Noted, rank: int) -> None:
    """DDP was made before a callback froze and thawed weights, and is again."""
    noted.assert_same("frozen", rank=rank)
    assert noted.exits("frozen", rank=rank) == [75, 0]


def test_what_was_frozen_within_shards_is_refused(noted: Noted) -> None:
    """FSDP2 goes on training what was frozen later, and would not in the next life."""
    assert noted.all("frozen-sharded", "exit", life=1)[0]["status"] == 1
    assert not noted.all("frozen-sharded", "train", life=1)
    assert "frozen or thawed while it trained, which FSDP2 does not see" in noted.output


@pytest.mark.parametrize("case", ["ddp", "fsdp2"])
def test_both_processes_leave_at_the_same_step(noted: Noted, case: str) -> None:
    """The one that was not signalled leaves after the same step, in an evaluation after the same batch."""
    for what in ("train", "eval"):
        for life in (1, 2):
            first, second = (
                {step: len(rows) for step, rows in noted.steps(case, what, life=life, rank=rank).items()}
                for rank in (0, 1)
            )
            assert first == second
