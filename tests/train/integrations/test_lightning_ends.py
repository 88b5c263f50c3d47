# SPDX-License-Identifier: Apache-2.0
"""What a Lightning run leaves at an end, for what comes after: another life, more steps, another training."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

pytest.importorskip("lightning", reason="Lightning is not installed")
pytest.importorskip("pytorch_lightning", reason="Lightning's other package is not installed")
pytest.importorskip("torchdata", reason="torchdata is not installed")

from .lightning_lives import World, serving
from .lightning_rows import told

pytestmark = pytest.mark.timeout(240)


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """Return a server of lives."""
    with serving() as server:
        yield World(server, tmp_path_factory.mktemp("lightning-ends"))


def test_the_best_models_of_a_folder_that_is_another_in_each_life_are_not_forgotten(world: World) -> None:
    """So it is where ModelCheckpoint is given no dirpath; what comes next is compared with them."""
    whole, run = world.run({"saves": "own"}), world.run({"saves": "own"})
    whole.live(0)
    run.live(75, **told("step", 14))
    text = run.live(0)
    assert "dirpath has changed" not in text
    assert "is not here" not in text
    (expected,) = [row for row in whole.quiet() if "last" in row]
    assert [row for row in run.quiet() if "last" in row][-1] == expected


def test_where_no_epoch_was_left_what_comes_after_draws_as_after_an_undisturbed_run(world: World) -> None:
    """Stopped at the very end, or finished and begun again: a second training in the process is the same."""
    case = {"after": ["validate"]}
    run = world.run(case)
    run.live(75, **told("epoch", 18))
    run.live(0)
    assert run.rows() == world.whole(case)
    run.live(0)
    again = run.rows()[len(world.whole(case)) :]
    assert any("draw" in row for row in again)
    assert again == world.whole(case)[-len(again) :]


def test_a_run_that_was_stopped_at_its_end_and_gets_more_epochs_draws_as_one_that_had_them(
    world: World,
) -> None:
    """The life that finds no epoch left saves the chance that its loaders and layers were about to draw."""
    run = world.run({"loader": "generator"})
    run.live(75, **told("epoch", 12), trainer={"max_epochs": 2})
    run.live(0, trainer={"max_epochs": 2})
    run.live(0)
    whole = world.whole({"loader": "generator"})
    assert [row for row in run.rows() if "had" in row] == [row for row in whole if "had" in row]


def test_the_rest_of_an_epoch_that_max_steps_has_ended_is_left_out_with_a_word(world: World) -> None:
    """Its end has been had, evaluation and hooks and all; more steps go on with the next epoch."""
    run = world.run({})
    run.live(0, trainer={"max_steps": 8, "max_epochs": -1})
    text = run.live(0, trainer={"max_steps": 10, "max_epochs": -1})
    assert "epoch 1 was ended before its last batch" in text
    assert [row["step"] for row in run.rows() if "step" in row] == list(range(1, 11))
    run = world.run({})
    run.live(75, **told("epoch", 6))
    assert "before its last batch" not in run.live(0)


def test_a_test_after_training_is_as_without_us(world: World) -> None:
    """Nobody is told to stop: test and prediction come to their ends."""
    run = world.run({"after": ["test", "predict", "validate"]})
    run.live(0)
    assert [row["predicted"] for row in run.rows() if "predicted" in row] == [0, 1, 2]
