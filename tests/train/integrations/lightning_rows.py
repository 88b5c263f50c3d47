# SPDX-License-Identifier: Apache-2.0
"""The tables of Lightning's tests: what runs are like, where they are told to stop, and what is refused."""

from __future__ import annotations

import random
from typing import Any

RANDOM = random.Random(6)


def told(place: str, step: int, how: str = "term") -> dict[str, Any]:
    """Return what the first life is to do to itself."""
    return {"tell": {"in": place, "step": step, "how": how}}


PLAIN: dict[str, Any] = {}
HALVES: dict[str, Any] = {
    "trainer": {"accumulate_grad_batches": 4, "val_check_interval": 0.5, "max_epochs": 2},
    "samples": 40,
}
STEPS: dict[str, Any] = {"trainer": {"max_steps": 10, "max_epochs": -1, "val_check_interval": 2}}
WATCHED: dict[str, Any] = {"plateau": "val", "early": True, "saves": "shared", "trainer": {"max_epochs": 6}}
SCHEDULED: dict[str, Any] = {"accumulates": {"0": 2, "1": 4}, "samples": 40}
# Asked in configure_optimizers how many steps there will be, Lightning makes its loaders before the resume.
ESTIMATED: dict[str, Any] = {"estimates": "optimizers"}
RELOADED: dict[str, Any] = {**ESTIMATED, "trainer": {"reload_dataloaders_every_n_epochs": 2}}
DRAWN: dict[str, Any] = {"drawn": "all"}
REDRAWN: dict[str, Any] = {"drawn": "training", "trainer": {"reload_dataloaders_every_n_epochs": 1}}
EVERY: list[tuple[str, dict[str, Any], str, int, str]] = [
    ("random step", PLAIN, "step", RANDOM.randrange(1, 17), "term"),
    ("random step, order", PLAIN, "step", RANDOM.randrange(1, 17), "stop"),
    ("last step of an epoch", PLAIN, "batch", 6, "term"),
    ("evaluation", PLAIN, "validation", 12, "term"),
    ("evaluation, order", PLAIN, "validation", 6, "stop"),
    ("end of an epoch", PLAIN, "epoch", 12, "term"),
    ("the very last evaluation", PLAIN, "validation", 18, "term"),
    ("end of the last epoch", PLAIN, "epoch", 18, "term"),
    ("gradient accumulation", HALVES, "step", 2, "term"),
    ("evaluation within gradient accumulation", HALVES, "validation", 1, "term"),
    ("evaluation in the middle of an epoch", HALVES, "validation", 4, "term"),
    ("evaluation every second step", STEPS, "validation", 8, "term"),
    ("the last evaluation by steps", STEPS, "validation", 10, "term"),
    ("the last step by steps", STEPS, "batch", 10, "term"),
    ("plateau, early stopping, files", WATCHED, "step", 4, "term"),
    ("plateau, early stopping, files: evaluation", WATCHED, "validation", 6, "term"),
    *[
        (f"learning rate by {by}: {place} {step}", {"plateau": by}, place, step, "term")
        for by in ("val", "loss_epoch")
        for place, step in (("step", 8), ("validation", 12), ("batch", 12))
    ],
    *[(f"thawed layers: {step}", {"thaws": True}, "step", step, "term") for step in (2, 8)],
    ("thawed layers: evaluation", {"thaws": True}, "validation", 12, "term"),
    *[(f"scheduled accumulation: {step}", SCHEDULED, "step", step, "term") for step in (2, 6)],
    ("scheduled accumulation: evaluation", SCHEDULED, "validation", 8, "term"),
    ("optimization by hand, two optimizers", {"manual": True, "hooks": True}, "step", 4, "term"),
    ("averaged weights", {"ema": True}, "step", 8, "term"),
    ("averaged weights: evaluation", {"ema": True}, "validation", 12, "term"),
    ("hooks and hyperparameters", {"hooks": True, "hyper": True}, "step", 8, "term"),
    *[
        (f"metrics that hold more than states: {place}", {"metrics": True}, place, 12, "term")
        for place in ("batch", "validation")
    ],
    ("metrics that hold more than states: step", {"metrics": True}, "step", 9, "term"),
    ("an epoch that the program cuts short", {"cuts": 4}, "step", 6, "term"),
    ("a batch that is none", {"loader": "holes"}, "step", 8, "term"),
    *[
        (f"steps estimated: {place} {step}", ESTIMATED, place, step, "term")
        for place, step in (("step", 3), ("validation", 12))
    ],
    ("steps estimated before our callback is set up", {"estimates": "setup"}, "step", 8, "term"),
    *[(f"steps estimated, loaders made anew: {step}", RELOADED, "step", step, "term") for step in (8, 14)],
    *[
        (f"data drawn anew in each life: {place}", DRAWN, place, 12, "term")
        for place in ("step", "validation")
    ],
    *[(f"data drawn anew in each epoch: {step}", REDRAWN, "step", step, "term") for step in (3, 8)],
    ("data drawn anew in each epoch: end", REDRAWN, "epoch", 12, "term"),
    ("the other package", {"package": "pytorch_lightning"}, "step", 8, "term"),
]
HELD = (
    *("drawing", "shared", "counting", "weighted", "batching", "stateful batching", "episodes"),
    *("told", "passing", "streaming", "own"),
)

LOADERS: list[dict[str, Any]] = [
    {"workers": 2},
    {"loader": "generator"},
    {"loader": "resumable", "workers": 2},
    {"loader": "stateful"},
    {"loader": "stream", "workers": 2},
    {"loader": "stateful generator"},
    {"loader": "stateful sampler"},
    {"loader": "stateful stream"},
    {"loader": "stateful stream", "workers": 1},
    {"loader": "stream and others"},
    {"loader": "two"},
    *[{"loader": f"held {kind}"} for kind in HELD],
    *[{"loader": f"held {kind}", "workers": 2} for kind in ("counting", "batching")],
    {"loader": "generator", "workers": 2, **ESTIMATED},
    {"loader": "stream and others", **ESTIMATED},
]

REFUSED = [
    ("averaging", "StochasticWeightAveraging: it swaps schedulers"),
    (
        "finder",
        "LearningRateFinder: find the learning rate first, with a Trainer that has no SpotwatchCallback",
    ),
    ("pruning", "ModelPruning: it renames parameters as it prunes"),
    ("two", "2 SpotwatchCallbacks: give the Trainer one"),
    ("twice", "fit() a second time with one SpotwatchCallback"),
    (
        "renamed",
        "lightning 2.6.6 has changed fit_loop.on_advance_end, _logger_connector._first_loop_iter, which",
    ),
]
