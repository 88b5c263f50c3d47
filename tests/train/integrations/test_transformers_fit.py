# SPDX-License-Identifier: Apache-2.0
"""What a SpotwatchCallback refuses, with what to do, and what it takes."""

from __future__ import annotations

import re

import pytest

from tests.train.integrations.lives import lives
from tests.train.integrations.transformers_rows import ROOT
from tests.train.launching import LAUNCH_SECONDS

pytest.importorskip("transformers", reason="the Trainer of transformers is what is tried here")

pytestmark = pytest.mark.timeout(LAUNCH_SECONDS)

_SAID = {
    "added_only": r"ConfigError: .*call callback\.attach\(trainer\)",
    "attached": r"2 steps, 0",
    "two_callbacks": r"ConfigError: this Trainer has a SpotwatchCallback already: give it one",
    "two_trainers": r"ConfigError: this SpotwatchCallback serves another Trainer",
    "no_checkpointer": r"ConfigError: SpotwatchCallback wants a Checkpointer, not '/.*\(Checkpointer\(",
    "trained_twice": r"ConfigError: train\(\) was called before: run 'run' is over",
    "batch_size_found": r"ConfigError: auto_find_batch_size .*set per_device_train_batch_size",
    "deepspeed": r"ConfigError: (?s:DeepSpeed .*use FSDP2.*FSDP1 .*use FSDP2)",
    "searched": r"ConfigError: a hyperparameter search is many runs",
    "own_handler": r"True, False",
    "resumed_from_nowhere": r"ConfigError: resume_from_checkpoint=True: there is no such checkpoint",
    "resumed_from_its_own": r"6 8 True",
    "begun_evaluating": r"\[3, 3, 8\] True; \[3, 3, 8\] True$",
    "also_without_adapters": r"ConfigError: also=.* a GPT2LMHeadModel is saved whole: leave it out",
    "always_given": r"14 True",
    "own_train": r"5 True; 5 True; 5 True; .*missing .*'note'",
    "other_batch_size": r"ConfigError: per_device_train_batch_size was 2, and is 4.*set what was",
    "scaled": r"8\.0",
    "told_before": r"0 76 76",
    "logged_oddly": r"\{'a': 0\.5, 'b': 2, 'c': \['\[0 1\]', \"<class 'object'>\"\], 'd': \[1, None, 'x'\]\}",
    "another_trainer": r"ConfigError: transformers [\d.]+ has .*_run_epoch\(.*_evaluate\(.*Install",
    "other_weights_evaluated": r"\[\[2, 2, 2\], \[3, 3, 3\]\] \[2, 3\]",
    "own_loaders": (
        r"list trained Wrapper trained DataLoaderDispatcher trained Changing trained DataLoader trained "
        r"trained trained$"
    ),
    "replaced": r"trained( refused){9}$",
    "other_data": r"11 batches of 22, 12 of 24; 11 batches of 22, 11 of 21; 8; 14; 4; 13$",
    "gathered": r"\[4, 4\]$",
    "averaged": r"ConfigError: BEMACallback averages weights .*train without it",
    "frozen_again": r"True \['transformer\.wte\.weight', 'transformer\.ln_f\.weight'\]",
    "longer_schedule": r"6 True 7 True$",
    "other_rates": r"True",
    "as_the_page_says": r"\[20, 20\] \['sweep-01'\]",
}


@pytest.fixture(scope="module")
def said(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Do all checks in one process."""
    with lives(tmp_path_factory.mktemp("transformers") / "checks", "transformers_checks.py") as checks:
        output = checks.run(PYTHONPATH=str(ROOT))
        return {row["what"]: row["said"] for row in checks.rows()} | {"output": output}


@pytest.mark.parametrize("check", _SAID)
def test_it_says_what_to_do(said: dict[str, str], check: str) -> None:
    """Each use comes to what it should."""
    assert re.match(_SAID[check], said[check]), said[check]


def test_what_is_switched_off_or_passed_over_is_said(said: dict[str, str]) -> None:
    """The log names the Trainer's own handler, and arguments that are not needed or come too late."""
    assert "enable_jit_checkpoint is switched off" in said["output"]
    assert re.search(
        r"resume_from_checkpoint='\S+' is passed over: the run goes on from step 6", said["output"]
    )
    was_and_is = "weight_decay was 0.0 when the run began, and is 0.5 now: passed over"
    assert f"learning_rate was 5e-05 when the run began, and is 0.5 now; {was_and_is}" in said["output"]
    assert "betas was [0.9, 0.999] when the run began, and is [0.9, 0.5] now" in said["output"]
