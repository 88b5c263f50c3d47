# SPDX-License-Identifier: Apache-2.0
"""A Trainer's data goes on where it was: order, chance, workers, streams, and where it cannot."""

from __future__ import annotations

from typing import Any

import pytest

from tests.train.integrations.transformers_rows import PLAIN, Noted, at, run
from tests.train.launching import LAUNCH_SECONDS

pytest.importorskip("transformers", reason="the Trainer of transformers is what is tried here")

pytestmark = pytest.mark.timeout(LAUNCH_SECONDS)

_TWO_EPOCHS = {"num_train_epochs": 2}
_EVALUATES: dict[str, Any] = {"eval_strategy": "steps", "eval_steps": 2}
_WORKERS = {"dataloader_num_workers": 2}
_STAYING = _WORKERS | {"dataloader_persistent_workers": True}
_NOISE = {"noise": True}
_NONE = PLAIN | {"args": {"max_steps": 1}}
"""Where nothing is compared with a training without us."""
_IGNORED: dict[str, Any] = {"ignore_data_skip": True}
_REFUSED = 3
_TOLD = 2
_CASES: list[dict[str, Any]] = [
    {"name": "workers", "args": _TWO_EPOCHS | _WORKERS, "lives": [PLAIN, at(7, "GROUP"), at(2, "GROUP"), {}]},
    {
        "name": "read-again",
        "args": _TWO_EPOCHS | _WORKERS,
        "data": _NOISE,
        "options": {"rereads": True},
        "lives": [PLAIN, at(7), at(9), {}],
    },
    {"name": "passed-over", "args": _TWO_EPOCHS | _WORKERS, "data": _NOISE, "lives": [PLAIN, at(7), {}]},
    {
        "name": "staying",
        "args": _TWO_EPOCHS | _EVALUATES | _STAYING,
        "lives": [PLAIN, at(9, "GROUP"), at(2, "GROUP", within="eval"), {}],
    },
    {
        "name": "grouped",
        "args": _TWO_EPOCHS | {"train_sampling_strategy": "group_by_length"},
        "lives": [PLAIN, at(7), at(7), {}],
    },
    {"name": "max_steps", "args": {"max_steps": 15}, "lives": [PLAIN, at(7), at(18), {}]},
    {
        "name": "stream",
        "args": {"max_steps": 9},
        "data": {"stream": True},
        "lives": [PLAIN, at(7), at(9), {}],
    },
    {
        "name": "stream-even",
        "args": {"max_steps": 7},
        "data": {"stream": True, "count": 8},
        "lives": [PLAIN, at(4), at(3), {}],
    },
    {
        "name": "stream-odd",
        "args": {"max_steps": 9},
        "data": {"stream": True, "count": 10},
        "lives": [PLAIN, at(7), at(3), {}],
    },
    *(
        {"name": kind, "held": kind, "args": {"num_train_epochs": 3} | _EVALUATES, "lives": lives}
        for kind, lives in (
            *(("loader", [PLAIN, at(13), {}]), ("weighted", [PLAIN, at(13), at(9), {}])),
            ("counting", [PLAIN, at(13), at(9), {}]),
            ("masked", [PLAIN, at(5, within="eval"), at(7), at(11), {}]),
        )
    ),
    {
        "name": "masked-by-workers",
        "held": "masked",
        "args": _TWO_EPOCHS | _WORKERS,
        "options": {"rereads": True},
        "lives": [PLAIN, at(7), {}],
    },
    {"name": "counting-stream", "held": "stream", "args": {"max_steps": 15}, "lives": [PLAIN, at(13), {}]},
    *(
        {"name": name, "shard": kind, "args": _TWO_EPOCHS | _EVALUATES | args, "lives": lives} | more
        for name, kind, args, lives, more in (
            ("moving", "moving", {}, [PLAIN, at(7), at(9), {}], {"data": _NOISE}),
            ("ahead", "ahead", {}, [PLAIN, at(7), at(9), {}], {"data": _NOISE}),
            ("drawing", "drawing", {}, [PLAIN, at(7), at(9), {}], {}),
            ("moving-by-workers", "moving", _WORKERS, [PLAIN, at(7), at(1, "GROUP"), {}], {}),
            ("moving-staying", "moving", _STAYING | {"num_train_epochs": 3}, [PLAIN, at(15), at(9), {}], {}),
            (
                *("moving-read-again", "moving", _WORKERS, [PLAIN, at(7), at(9), {}]),
                {"data": _NOISE, "options": {"rereads": True}},
            ),
        )
    ),
    *(
        {
            "name": name,
            "args": _TWO_EPOCHS | args,
            "options": options,
            "lives": [_NONE, at(7), {"args": changed}],
        }
        for name, args, options, changed in (
            ("other-seed", {}, {}, {"seed": 8}),
            ("other-seed-for-workers", _WORKERS, {"rereads": True}, {"data_seed": 8}),
            ("other-strategy", _WORKERS, {}, {"train_sampling_strategy": "group_by_length"}),
        )
    ),
    *(
        {"name": name, "args": _TWO_EPOCHS | args, "lives": [_NONE, at(batches) | {"split": 1}, {"split": 2}]}
        for name, args, batches in (
            ("other-split", {}, 7),
            ("other-split-after-an-epoch", {}, 11),
            ("other-split-ignored", _IGNORED, 7),
        )
    ),
    {
        "name": "ignored",
        "args": _TWO_EPOCHS | _IGNORED | {"logging_nan_inf_filter": False},
        "lives": [PLAIN, at(7), {}],
    },
]


@pytest.fixture(scope="module")
def noted(tmp_path_factory: pytest.TempPathFactory) -> Noted:
    """Live all cases once."""
    return run(tmp_path_factory.mktemp("transformers"), _CASES)


@pytest.mark.parametrize(
    "case",
    ["workers", "read-again", "staying", "grouped", "max_steps", "stream", "stream-even", "stream-odd"],
)
def test_the_data_is_the_same(noted: Noted, case: str) -> None:
    """Every batch and every loss is that of an uninterrupted training, to the last bit."""
    noted.assert_same(case)
    assert set(noted.exits(case)) == {0, 75}


@pytest.mark.parametrize(
    "case", ["loader", "weighted", "counting", "masked", "masked-by-workers", "counting-stream"]
)
def test_what_data_draws_and_counts_itself_goes_on(noted: Noted, case: str) -> None:
    """Generators of samplers, datasets and collators, and counts of their own, are where they were."""
    noted.assert_same(case)
    assert set(noted.exits(case)) == {0, 75}


@pytest.mark.parametrize(
    "case", ["moving", "ahead", "drawing", "moving-by-workers", "moving-staying", "moving-read-again"]
)
def test_a_loader_of_a_frameworks_own_kind_goes_on(noted: Noted, case: str) -> None:
    """Where the framework has its own function that passes over batches, as ms-swift, all is the same too."""
    noted.assert_same(case)
    assert set(noted.exits(case)) == {0, 75}


@pytest.mark.parametrize("case", ["workers", "staying", "moving-by-workers"])
def test_a_signal_to_the_whole_group_is_a_stop_as_any(noted: Noted, case: str) -> None:
    """Workers of training, of the rest of an epoch and of an evaluation outlive it, and nothing is lost."""
    assert noted.exits(case) == [75, 75, 0]
    assert "is killed by signal" not in noted.output


@pytest.mark.parametrize("case", ["other-seed", "other-seed-for-workers", "other-strategy"])
def test_another_order_is_refused_within_an_epoch(noted: Noted, case: str) -> None:
    """Nothing is trained behind samples that are not those that were trained."""
    assert noted.exits(case) == [75, 1]
    assert not noted.all(case, "train", life=2)
    assert noted.output.count("after 8 batches, and these would be of other samples now") == _REFUSED


def test_another_split_is_refused_within_an_epoch(noted: Noted) -> None:
    """Nothing is trained of the other rows, as many, that a split without a seed gives to each life."""
    assert noted.exits("other-split") == [75, 1]
    assert not noted.all("other-split", "train", life=2)
    assert noted.output.count("stopped within an epoch, and train_dataset has other rows now: split") == 1


def test_another_split_is_told_where_no_epoch_is_gone_on_with(noted: Noted) -> None:
    """It is trained, and the log says that it is another, also of what is evaluated."""
    assert noted.exits("other-split-after-an-epoch") == noted.exits("other-split-ignored") == [75, 0]
    for name in ("train_dataset", "eval_dataset"):
        assert noted.output.count(f"{name} has other rows than in the lives of this run before") == _TOLD


def test_chance_in_workers_differs_without_rereads(noted: Noted) -> None:
    """Workers draw anew after a resume, unless batches are made again; no batch is lost or doubled."""
    whole, before, after = (noted.steps("passed-over", "train", life=life) for life in range(3))
    assert before.keys() | after.keys() == whole.keys()
    assert not before.keys() & after.keys()
    assert all(before[step] == whole[step] for step in before)
    interrupted = [step for step in after if step < 6]
    assert interrupted
    assert all(after[step][0]["words"] != whole[step][0]["words"] for step in interrupted)


def test_a_stream_that_ends_within_an_accumulation_saves_after_the_step(noted: Noted) -> None:
    """Gradients that go into the next step are never left out: the stop waits for that step."""
    assert noted.executed("stream-odd") == list(range(9))


def test_ignore_data_skip_begins_the_epochs_data_anew(noted: Noted) -> None:
    """The step goes on, and the interrupted epoch begins at its first batch, as the option says."""
    assert noted.executed("ignored") == list(range(12))
    first = noted.steps("ignored", "train", life=1)[0][0]["words"]
    assert noted.steps("ignored", "train", life=2)[4][0]["words"] == first
