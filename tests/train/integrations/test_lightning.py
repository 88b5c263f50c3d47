# SPDX-License-Identifier: Apache-2.0
"""Lightning's Trainer with our callback: what several lives do is what one does, whatever ends them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("lightning", reason="Lightning is not installed")
pytest.importorskip("pytorch_lightning", reason="Lightning's other package is not installed")
pytest.importorskip("torchdata", reason="torchdata is not installed")

from .lightning_lives import World, serving
from .lightning_rows import ESTIMATED, EVERY, HALVES, LOADERS, PLAIN, REFUSED, told

pytestmark = pytest.mark.timeout(240)


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """Return a server of lives."""
    with serving() as server:
        yield World(server, tmp_path_factory.mktemp("lightning"))


@pytest.mark.parametrize(
    ("case", "place", "step", "how"), [row[1:] for row in EVERY], ids=[row[0] for row in EVERY]
)
def test_a_run_that_was_stopped_does_all_that_an_undisturbed_one_does_and_nothing_twice(
    world: World, case: dict[str, Any], place: str, step: int, how: str
) -> None:
    """Told to stop at some place, it goes on in another process as if nothing had been."""
    run = world.run(case)
    run.live(75, **told(place, step, how))
    run.live(0)
    assert run.rows() == world.whole(case)
    assert [row["exit_code"] for row in run.quiet() if "exit_code" in row] == [75, 0]


@pytest.mark.parametrize("loader", ["plain", "generator", "held counting"])
def test_loaders_that_are_made_before_ours_is_set_up_draw_no_more_for_that(world: World, loader: str) -> None:
    """A new run trains in the order that it would have without the callback."""
    asking = world.whole({"loader": loader, "estimates": "setup"})
    assert asking == world.whole({"loader": loader})


@pytest.mark.parametrize("case", LOADERS, ids=[json.dumps(case) for case in LOADERS])
def test_each_kind_of_loader_goes_on_at_the_next_batch(world: World, case: dict[str, Any]) -> None:
    """Order and random transformations are those of an undisturbed run, within an epoch and between two."""
    run = world.run(case)
    run.live(75, **told("batch", 4))
    run.live(75, **told("batch", 6))
    run.live(75, **told("validation", 12))
    run.live(0)
    assert run.rows() == world.whole(case)


@pytest.mark.parametrize(
    "case",
    [{"workers": 2, "persistent": True}, {"loader": "stateful", "workers": 2}],
    ids=["persistent", "stateful"],
)
def test_workers_whose_chance_is_lost_still_keep_the_order(world: World, case: dict[str, Any]) -> None:
    """Where nobody can restore the random state of workers, each batch has the same samples all the same."""
    run = world.run(case)
    run.live(75, **told("batch", 9))
    run.live(0)
    samples = [row["had"][0] for row in run.rows() if "had" in row]
    assert samples == [row["had"][0] for row in world.whole(case) if "had" in row]
    assert run.rows() != world.whole(case), "it is exact: then the page may say so"


@pytest.mark.parametrize("case", [PLAIN, {"loader": "stateful"}, ESTIMATED], ids=str)
def test_another_dataset_in_the_middle_of_an_epoch_is_refused(world: World, case: dict[str, Any]) -> None:
    """The rest of the epoch would be of other samples; between two epochs it is taken."""
    run = world.run(case)
    run.live(75, **told("batch", 4))
    for samples, batches in ((8, 2), (23, 6), (48, 12)):
        text = run.live(1, samples=samples)
        assert f"had 6 batches of 24 samples, and this one has {batches} of {samples}: make it of" in text
    run.live(75, **told("epoch", 6))
    run.live(0, samples=8)
    assert [row["step"] for row in run.rows() if "step" in row] == [1, 2, 3, 4, 5, 6, 7, 8, 9, 10]


@pytest.mark.parametrize("workers", [0, 2])
def test_another_order_in_the_middle_of_an_epoch_is_said(world: World, workers: int) -> None:
    """A seed of the sampler, or one that draws by no seed at all, trains some samples twice."""
    run = world.run({"loader": "held seeded", "workers": workers})
    run.live(75, **told("batch", 4))
    text = run.live(75, **told("epoch", 6), environ={"ORDER": "1"})
    assert "after 4 batches, and these would be of other samples now" in text
    assert "would be of other samples" not in run.live(0)
    assert [row["step"] for row in run.rows() if "step" in row] == list(range(1, 19))
    run = world.run({"loader": "held unseeded", "workers": workers})
    run.live(75, **told("batch", 4))
    assert "let dataset, seed and sampler be what they were" in run.live(0)
    run = world.run({"loader": "held episodes", "workers": workers})
    run.live(75, **told("batch", 4))
    assert "draws from the global random generators batch by batch" in run.live(0)


def test_another_split_of_the_data_is_refused_in_the_middle_of_an_epoch(world: World) -> None:
    """What a split without a seed gives; between two epochs, and where others are due anyway, it is said."""
    run = world.run({"loader": "held split"})
    run.live(75, **told("batch", 4))
    assert "whose dataset had other rows: split and sample" in run.live(1, environ={"ORDER": "1"})
    assert "has other rows" not in run.live(75, **told("epoch", 6))
    assert "the dataset of training has other rows" in run.live(0, environ={"ORDER": "1"})
    run = world.run({"loader": "held split", "trainer": {"reload_dataloaders_every_n_epochs": 1}})
    run.live(75, **told("batch", 4))
    assert "the dataset of training has other rows" in run.live(0, environ={"ORDER": "1"})


@pytest.mark.parametrize("case", [PLAIN, ESTIMATED], ids=str)
def test_an_error_of_the_program_where_a_loader_begins_is_the_one_that_is_shown(
    world: World, case: dict[str, Any]
) -> None:
    """Lightning's teardown asks loaders that have not begun for a length, and raises where there is none."""
    run = world.run({"loader": "held unseeded", "workers": 1, **case})
    run.live(75, **told("batch", 4))
    text = run.live(1, environ={"BROKEN": "1"})
    assert "no sample is left" in text
    assert "Please call `iter" not in text


def test_another_number_of_loaders_in_the_middle_of_an_epoch_is_refused(world: World) -> None:
    """Which of them goes on where is not known."""
    run = world.run({"loader": "two"})
    run.live(75, **told("batch", 4))
    assert "had 2 loaders, and this program has 1: give the same" in run.live(1, loader="plain")


def test_workers_of_an_evaluation_that_live_on_draw_no_seed_again(world: World) -> None:
    """They would shift all chance after them; what they themselves draw is lost, and so not compared."""
    case = {"lasting": True}
    run = world.run(case)
    run.live(75, **told("validation", 6))
    run.live(75, **told("step", 9))
    run.live(0)
    assert [row for row in run.rows() if "had" in row] == [row for row in world.whole(case) if "had" in row]


@pytest.mark.parametrize(("place", "step"), [("step", 3), ("validation", 6), ("epoch", 6)])
def test_a_generator_of_an_evaluation_goes_on(world: World, place: str, step: int) -> None:
    """Its loader draws what it was about to draw, and its steps are counted on, also after two stops."""
    # What was logged of one that is broken off is logged again.
    case = {"draws": "in all" if place == "validation" else "each batch"}
    run = world.run(case)
    run.live(75, **told(place, step))
    run.live(75, **told("step", step + 2))
    run.live(0)
    assert run.rows() == world.whole(case)


def test_a_signal_to_the_whole_process_group_does_not_cost_the_workers(world: World) -> None:
    """A service manager signals all processes; workers that died of it would take the last save with them."""
    case = {"workers": 2}
    run = world.run(case)
    run.live(75, **told("step", 4, "group"))
    run.live(0)
    assert run.rows() == world.whole(case)


def test_after_a_sigkill_it_goes_on_from_the_last_save(world: World) -> None:
    """What was done after the last save is done again, to the last bit the same; all else once."""
    run = world.run({"ck": {"every_seconds": None, "every_steps": 4}})
    run.live(-9, **told("step", 10, "kill"))
    before = run.rows()
    run.live(0)
    rows, whole = run.rows(), world.whole(PLAIN)
    assert before == whole[: len(before)]
    again = next(n for n, row in enumerate(whole) if row.get("step") == 9)
    assert rows[len(before) :] == whole[again:]


def test_an_order_to_save_is_answered_and_training_goes_on(world: World) -> None:
    """A flush saves at the end of the step, removes the flag, and changes nothing."""
    run = world.run(PLAIN)
    text = run.live(0, **told("step", 7, "flush"))
    assert "step 8 is durable" in text
    assert not run.flag_is_there()
    assert run.status().saved.seq == 1
    assert run.rows() == world.whole(PLAIN)


def test_an_order_to_save_that_comes_inside_an_evaluation_is_answered_at_its_end(world: World) -> None:
    """It does not break the evaluation off."""
    run = world.run(HALVES)
    text = run.live(0, **told("validation", 3, "flush"))
    assert "step 3 is durable" in text
    assert not run.flag_is_there()
    assert run.rows() == world.whole(HALVES)


def test_a_stop_during_the_sanity_check_leaves_before_anything_is_trained(world: World) -> None:
    """There is nothing to save yet; the next life begins."""
    run = world.run(PLAIN)
    run.live(76, **told("sanity", 0))
    assert run.rows() == []
    run.live(0)
    assert run.rows() == world.whole(PLAIN)


def test_who_wants_fit_to_return_reads_the_exit_code(world: World) -> None:
    """With exits=False a stop ends fit without an exception."""
    run = world.run({"exits": False, "raises_after": True})
    run.live(75, **told("step", 5))
    assert run.quiet(exit_code=75)
    run.live(0)
    assert run.rows() == world.whole(PLAIN)


def test_loggers_are_closed_as_after_a_success_and_once(world: World) -> None:
    """A stop is no failure of the experiment, which goes on."""
    run = world.run(PLAIN)
    run.live(75, **told("step", 5))
    assert [row["finalized"] for row in run.quiet() if "finalized" in row] == ["success"]


def test_a_finished_run_that_is_started_again_returns_at_once(world: World) -> None:
    """Nothing is trained again, and nothing else is done again either."""
    run = world.run(PLAIN)
    run.live(0)
    run.live(0)
    assert run.rows() == world.whole(PLAIN)


def test_what_was_logged_last_is_there_after_fit_where_nothing_was_left_to_do(world: World) -> None:
    """Who reads callback_metrics after fit finds what an undisturbed run has, also of a finished run."""
    whole, run = world.run({"saves": "shared"}), world.run({"saves": "shared"})
    whole.live(0)
    run.live(75, **told("epoch", 18))
    run.live(0)
    run.live(0)
    (expected,) = [row for row in whole.quiet() if "last" in row]
    assert {"val", "loss_epoch", "metric"} <= set(expected["last"])
    assert expected["saved"] == [18]
    assert [row for row in run.quiet() if "last" in row] == [expected] * 3


def test_a_finished_run_goes_on_where_more_epochs_are_wanted(world: World) -> None:
    """Its end is the end of an epoch like others."""
    run = world.run(PLAIN)
    run.live(0)
    run.live(0, trainer={"max_epochs": 4})
    epochs = [row["epoch"] for row in run.rows() if "epoch" in row]
    assert epochs == [0, 1, 2, 3]


def test_a_checkpoint_path_counts_only_where_the_run_is_new(world: World, tmp_path: Path) -> None:
    """One that is missing fails a new run, and is passed over by one that goes on."""
    run = world.run(PLAIN)
    assert "nowhere.ckpt" in run.live(1, path=str(tmp_path / "nowhere.ckpt"))
    run.live(75, **told("step", 5))
    assert "is passed over" in run.live(0, path=str(tmp_path / "nowhere.ckpt"))
    assert run.rows() == world.whole(PLAIN)


def test_files_of_model_checkpoint_that_are_not_here_are_named(world: World) -> None:
    """On another machine, the best model's file may be gone."""
    run = world.run({"saves": "own"})
    run.live(75, **told("step", 8))
    for path in run.base.glob("store-files-1/*"):
        path.unlink()
    assert "was written on another machine and is not here" in run.live(0)


def test_what_a_hook_adds_without_a_safe_form_is_refused_at_the_start(world: World) -> None:
    """The message names the key, before a step is trained."""
    run = world.run({"unsafe": True})
    assert "lightning/checkpoint/mine/model: cannot save a" in run.live(1)
    assert run.rows() == []


def test_a_model_that_has_come_to_have_other_parts_is_not_saved_and_trains_on(world: World) -> None:
    """What is durable can be resumed, and the message says what has changed."""
    run = world.run({"prunes": True, "ck": {"every_seconds": None, "every_steps": 4}})
    text = run.live(76, **told("step", 9))
    assert "has changed in this life: layers.0.weight, layers.0.weight_mask, layers.0.weight_orig; no" in text
    assert [row["step"] for row in run.rows() if "step" in row] == list(range(1, 11))
    assert "goes on from step 4" in run.live(75, **told("step", 4))
    assert "step 18 is durable" in world.run({"prunes": True}).live(0)


@pytest.mark.parametrize(("place", "step"), [("step", 3), ("validation", 6)])
def test_lists_that_are_filled_within_an_epoch_are_named_at_a_stop(
    world: World, place: str, step: int
) -> None:
    """What is made of them at its end would be of a part of it; after its end nothing is to be said."""
    run = world.run(PLAIN)
    assert "keeps in gathered is not saved" in run.live(75, **told(place, step))
    assert "is not saved" not in run.live(75, **told("epoch", 6))


@pytest.mark.parametrize(("version", "is_named"), [("mine", True), (None, False)])
def test_a_logger_that_deletes_what_the_life_before_has_logged_is_named(
    world: World, version: str | None, *, is_named: bool
) -> None:
    """CSVLogger begins a file anew where its version is given."""
    text = world.run({"csv": version}).live(0)
    assert ("CSVLogger(version='mine'): the next life deletes what this one logs" in text) is is_named


def test_hyperparameters_without_a_safe_form_are_left_out_with_a_word(world: World) -> None:
    """Going on does not need them."""
    run = world.run({"hyper": True})
    assert "not kept, for going on does not need it: hyper_parameters/kind" in run.live(0)


def test_nothing_is_saved_by_a_trial_run(world: World) -> None:
    """fast_dev_run touches no run in a store."""
    run = world.run({"trainer": {"fast_dev_run": 2}})
    assert "neither resumed nor saved" in run.live(0)
    assert not (run.base / "store").exists()


def test_lightnings_own_handling_of_sigterm_is_off_and_it_says_so(world: World) -> None:
    """Its handler would broadcast."""
    run = world.run(PLAIN)
    text = run.live(75, **told("step", 5))
    assert "Lightning's handling of SIGTERM and its requeueing under Slurm are off" in text
    assert "Received SIGTERM" not in text


@pytest.mark.parametrize(("place", "done"), [("test", "tested"), ("prediction", "predicted")])
def test_a_stop_in_a_test_or_a_prediction_after_training_breaks_it_off(
    world: World, place: str, done: str
) -> None:
    """What was trained is durable, so the status says that; the next life trains nothing and does it anew."""
    run = world.run({"after": ["test", "predict"]})
    run.live(75, **told(place, 18))
    assert [row[done] for row in run.rows() if done in row] == [0, 1]
    run.live(0)
    assert [row[done] for row in run.rows() if done in row] == [0, 1, 0, 1, 2]
    assert [row["step"] for row in run.rows() if "step" in row] == list(range(1, 19))


@pytest.mark.parametrize(("bad", "message"), REFUSED, ids=[row[0] for row in REFUSED])
def test_what_does_not_fit_is_refused_at_the_start(world: World, bad: str, message: str) -> None:
    """The message says what to do."""
    assert message in world.run({"bad": bad}).live(1)
