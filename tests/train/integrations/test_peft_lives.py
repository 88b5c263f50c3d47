# SPDX-License-Identifier: Apache-2.0
"""LoRA runs that are stopped and killed at random steps, with adapters and optimizer alone in the store."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from tests.train.integrations.lives import HERE
from tests.train.launching import clean_environ

for needed in ("torch", "transformers", "peft"):
    pytest.importorskip(needed, reason=f"needs {needed}")
# Thirty lives take 30 s of a processor; what they take beside other work is another matter.
_MOST_SECONDS = 500
pytestmark = pytest.mark.timeout(_MOST_SECONDS + 100)

ROOT = Path(__file__).parents[3]
TOTAL = 14
EXAMPLE = ROOT / "examples" / "lora_train.py"
Runs = dict[str, dict[str, Any]]

_chance = random.Random(20)
_AT = {name: _chance.randrange(1, TOTAL - 1) for name in ("term", "kill", "order", "all", "two", "fsdp")}
_TERM = {"what": "term"}
PLAN: dict[str, list[dict[str, Any]]] = {
    "straight": [{}],
    "term": [{**_TERM, "at": _AT["term"]}, {}],
    "kill": [{"what": "kill", "at": _AT["kill"], "every": 3}, {}],
    "order": [{"what": "order", "at": _AT["order"]}, {}],
    "evaluation": [{**_TERM, "at": 8, "phase": "evaluation"}, {}],
    "all": [{**_TERM, "at": _AT["all"], "all_parameters": True}, {"all_parameters": True}],
    "adalora": [{"adalora": True}],
    "adalora-stopped": [
        {**_TERM, "at": 5, "adalora": True},
        {**_TERM, "at": 12, "adalora": True},
        {"adalora": True},
    ],
    "two": [{"ranks": 2}],
    "two-stopped": [{**_TERM, "at": _AT["two"], "ranks": 2, "rank": 1}, {"ranks": 2}],
    "fsdp": [{"ranks": 2, "fsdp": True}],
    "fsdp-stopped": [
        {**_TERM, "at": _AT["fsdp"], "ranks": 2, "fsdp": True, "rank": 1},
        {"ranks": 2, "fsdp": True},
    ],
    "fsdp-to-one-to-two": [
        {**_TERM, "at": 3, "ranks": 2, "fsdp": True},
        {**_TERM, "at": 6},
        {"ranks": 2},
    ],
    "other": [{**_TERM, "at": 3}, {"base": "other"}, {"r": 8}, {"base": "bit"}, {}],
    "other-fsdp": [
        {**_TERM, "at": 3, "ranks": 2, "fsdp": True},
        {"ranks": 2, "fsdp": True, "base": "other"},
    ],
}


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Runs:
    """Return what became of all runs: status and output of each life, and the steps that were executed."""
    base = tmp_path_factory.mktemp("peft")
    plan, out = base / "plan.json", base / "out.json"
    plan.write_text(json.dumps(PLAN | examples(base)))
    offline = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "PYTHONPATH": str(ROOT)}
    process = subprocess.Popen(
        [sys.executable, str(HERE / "peft_run.py"), str(base), str(out), str(plan)],
        env=clean_environ() | offline,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        output, _ = process.communicate(timeout=_MOST_SECONDS)
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)  # lives that hang outlive the one that began them
    assert process.returncode == 0, output
    result: Runs = json.loads(out.read_text())
    for run, lives in examples(base).items():
        result[run]["text"] = Path(lives[0]["trace"]).read_text()
        result[run]["adapter"] = {
            path.name: path.read_bytes() for path in Path(f"{base}/{run}.adapter").glob("adapter_*")
        }
    return result


def examples(base: Path) -> dict[str, list[dict[str, Any]]]:
    """Return lives of the example: one that nothing happens to, and two of another run."""
    result: dict[str, list[dict[str, Any]]] = {}
    for run in ("example", "example-stopped"):
        trace = base / f"{run}.txt"
        arguments = ["--base", base / "base", "--url", base / "store", "--run-id", run, "--trace", trace]
        arguments += ["--total-steps", 40, "--evaluate-every", 6, "--adapter", base / f"{run}.adapter"]
        life: dict[str, Any] = {
            "script": str(EXAMPLE),
            "arguments": [str(one) for one in arguments],
            "trace": str(trace),
        }
        result[run] = [life] if run == "example" else [life | {"lines": 7}, life]
    return result


def steps(run: dict[str, Any], rank: int = 0) -> list[tuple[int, str, str]]:
    """Return number, loss and learning rate of each step that a rank has executed, in order."""
    return [
        (row["step"], row["loss"], row["rate"])
        for row in run["rows"]
        if "step" in row and row["rank"] == rank
    ]


def evaluations(run: dict[str, Any]) -> list[tuple[int, int, str]]:
    """Return what each evaluation has found, in order."""
    return [(row["evaluated"], row["number"], row["loss"]) for row in run["rows"] if "evaluated" in row]


@pytest.mark.parametrize("name", ["term", "order", "evaluation", "all"])
def test_a_stopped_run_goes_on_as_if_it_had_not_been(runs: Runs, name: str) -> None:
    """Told at a random step, in a gradient accumulation or an evaluation: each step once, all bits equal."""
    run = runs[name]
    assert run["statuses"] == [75, 0], run["outputs"]
    assert steps(run) == steps(runs["straight"])
    assert evaluations(run) == evaluations(runs["straight"])


def test_a_killed_run_goes_on_from_its_last_save(runs: Runs) -> None:
    """SIGKILL at a random step: what is done again, and what follows, is what it would have been."""
    run = runs["kill"]
    assert run["statuses"] == [-9, 0], run["outputs"]
    executed = steps(run)
    assert dict.fromkeys(executed) == dict.fromkeys(steps(runs["straight"]))
    assert len(executed) - TOTAL == _AT["kill"] % 3


def test_adalora_keeps_the_ranks_it_has_chosen(runs: Runs) -> None:
    """Stopped while ranks are taken away, and after that: importance and pattern come back with the rest."""
    run = runs["adalora-stopped"]
    assert run["statuses"] == [75, 75, 0], run["outputs"]
    assert steps(run) == steps(runs["adalora"])
    assert steps(run) != steps(runs["straight"])


@pytest.mark.parametrize("kind", ["two", "fsdp"])
def test_two_ranks_stop_together_when_one_is_told(runs: Runs, kind: str) -> None:
    """SIGTERM to one of two ranks, under DDP or FSDP2: both leave after the same step, all bits equal."""
    run = runs[f"{kind}-stopped"]
    assert run["statuses"] == [75, 0], run["outputs"]
    for rank in (0, 1):
        assert steps(run, rank) == steps(runs[kind], rank)
    assert "though frozen" not in "".join(run["outputs"])


def test_a_run_changes_its_form(runs: Runs) -> None:
    """Saved by two ranks under FSDP2, it goes on in one process, then in two under DDP: the same base."""
    run = runs["fsdp-to-one-to-two"]
    assert run["statuses"] == [75, 75, 0], run["outputs"]
    assert [step for step, _, _ in steps(run)] == list(range(1, TOTAL + 1))
    assert "was saved by 2 ranks (2), and 1 go on with it (no mesh)" in run["outputs"][1]


def test_another_base_is_refused_and_the_run_is_left_as_it_was(runs: Runs) -> None:
    """Another base, other adapters, one bit of the base's file: each is refused; the right one goes on."""
    run = runs["other"]
    assert run["statuses"] == [75, 1, 1, 1, 0], run["outputs"]
    assert "StoreError: the checkpoint's model does not fit" in run["outputs"][1]
    assert "the base is not the one that this run was trained on" in run["outputs"][1]
    assert "/base'; here is '" in run["outputs"][1]
    assert "adapter 'default': r was 4 when it was saved, and is 8 here" in run["outputs"][2]
    assert "base_model.model.model.norm.weight has other values. Load that one" in run["outputs"][3]
    assert steps(run) == steps(runs["straight"])


def test_another_base_is_refused_when_it_is_sharded(runs: Runs) -> None:
    """Under FSDP2 the whole base is compared too, and all ranks leave."""
    run = runs["other-fsdp"]
    assert run["statuses"] == [75, 1], run["outputs"]
    assert run["outputs"][1].count("the base is not the one that this run was trained on") == 2


def test_the_example_goes_on_as_if_nothing_had_been(runs: Runs) -> None:
    """SIGTERM from outside: each step once, all losses equal, and the same adapter at the end."""
    assert runs["example"]["statuses"] == [0], runs["example"]["outputs"]
    stopped = runs["example-stopped"]
    assert stopped["statuses"] == [75, 0], stopped["outputs"]
    assert stopped["text"] == runs["example"]["text"]
    assert len(stopped["text"].splitlines()) == 40
    assert stopped["adapter"].keys() == {"adapter_config.json", "adapter_model.safetensors"}
    assert stopped["adapter"] == runs["example"]["adapter"]
