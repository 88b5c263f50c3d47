# SPDX-License-Identifier: Apache-2.0
"""What does not fit is refused, with what to do instead."""

from __future__ import annotations

from enum import Enum
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from spotwatch.errors import ConfigError, StoreError
from spotwatch.train import Checkpointer

for needed in ("torch", "accelerate"):
    pytest.importorskip(needed, reason=f"needs {needed}")

import torch  # noqa: E402 - after the skip
from accelerate import Accelerator  # noqa: E402 - after the skip
from accelerate.utils import GradientAccumulationPlugin  # noqa: E402 - after the skip
from torch.utils.data import DataLoader, TensorDataset  # noqa: E402 - after the skip

from spotwatch.train.integrations.accelerate import SpotwatchRun  # noqa: E402 - after the skip

from .accelerate_world import Program, forget  # noqa: E402 - after the skip

pytestmark = [pytest.mark.timeout(120), pytest.mark.usefixtures("only_accelerator")]


class _Kind(Enum):
    DEEPSPEED = "DEEPSPEED"
    MEGATRON_LM = "MEGATRON_LM"
    FSDP = "FSDP"
    XLA = "XLA"


@pytest.mark.parametrize(
    ("kind", "instead"),
    [("DEEPSPEED", "fsdp_version=2"), ("MEGATRON_LM", "FSDP2"), ("FSDP", "fsdp_version=2"), ("XLA", "CUDA")],
)
def test_what_cannot_be_saved_is_refused_at_the_start(
    tmp_path: Path, environ: dict[str, str], kind: str, instead: str
) -> None:
    """The message says what to use instead."""
    lists = ("_models", "_optimizers", "_schedulers", "_custom_objects", "_dataloaders")
    held: dict[str, Any] = {name: [] for name in lists}
    stand_in = SimpleNamespace(
        **held,
        step=0,
        sync_gradients=True,
        gradient_state=None,
        is_fsdp2=False,
        distributed_type=_Kind(kind),
    )
    ck = Checkpointer(tmp_path / "store", run_id="run", environ=environ)
    with pytest.raises(ConfigError, match=f"{kind}.*{instead}"):
        SpotwatchRun(ck, stand_in)


def test_an_epoch_that_ends_within_a_step_is_refused(tmp_path: Path, environ: dict[str, str]) -> None:
    """Its gradients would be lost, and a run that ends so would never be saved."""
    plugin = GradientAccumulationPlugin(num_steps=3, sync_with_dataloader=False)
    program = Program(tmp_path, environ, gradient_accumulation_plugin=plugin)
    with pytest.raises(ConfigError, match="leave it out, so that its last batch makes a step"):
        SpotwatchRun(program.ck, program.accelerator)


def test_an_accelerate_that_works_otherwise_is_refused(tmp_path: Path, environ: dict[str, str]) -> None:
    """What is reached into is looked for at the start."""
    ck = Checkpointer(tmp_path / "store", run_id="run", environ=environ)
    with pytest.raises(ConfigError, match=r"without _models.*accelerate==1\.15\.0"):
        SpotwatchRun(ck, SimpleNamespace())


def test_a_run_without_anything_prepared_is_refused(tmp_path: Path, environ: dict[str, str]) -> None:
    """It would save nothing."""
    ck = Checkpointer(tmp_path / "store", run_id="run", environ=environ)
    with (
        pytest.raises(ConfigError, match="nothing is prepared"),
        SpotwatchRun(ck, Accelerator(cpu=True)),
    ):
        pass


def test_a_step_outside_of_the_run_is_refused(tmp_path: Path, environ: dict[str, str]) -> None:
    """Nothing was resumed there."""
    program = Program(tmp_path, environ)
    run = SpotwatchRun(program.ck, program.accelerator)
    with pytest.raises(ConfigError, match="outside of `with"):
        run.step()


def test_what_is_prepared_too_late_is_refused_at_the_next_step(
    tmp_path: Path, environ: dict[str, str]
) -> None:
    """It would not be saved."""
    program = Program(tmp_path, environ)
    with SpotwatchRun(program.ck, program.accelerator) as run:
        program.accelerator.prepare(torch.nn.Linear(2, 1))
        with pytest.raises(ConfigError, match="after the run had begun"):
            run.step()


def test_memory_that_is_freed_too_early_is_refused(tmp_path: Path, environ: dict[str, str]) -> None:
    """What was freed may train no more, but would be saved."""
    program = Program(tmp_path, environ)
    with SpotwatchRun(program.ck, program.accelerator) as run:
        program.accelerator.free_memory()
        with pytest.raises(ConfigError, match="free_memory"):
            run.step()


def test_what_is_prepared_in_place_of_what_was_freed_is_refused(
    tmp_path: Path, environ: dict[str, str]
) -> None:
    """There are as many objects as before, but those that train are others."""
    program = Program(tmp_path, environ)
    model, loader = torch.nn.Linear(2, 1), DataLoader(TensorDataset(torch.ones(8, 2)), batch_size=2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with SpotwatchRun(program.ck, program.accelerator) as run:
        assert not run.step()
        program.accelerator.free_memory()
        program.accelerator.prepare(model, optimizer, loader)
        with pytest.raises(ConfigError, match="free_memory"):
            run.step()


def test_a_loader_that_is_prepared_later_is_said(
    tmp_path: Path, environ: dict[str, str], caplog: pytest.LogCaptureFixture
) -> None:
    """One made for each evaluation does no harm, so it is said once."""
    program = Program(tmp_path, environ)
    with SpotwatchRun(program.ck, program.accelerator) as run:
        program.accelerator.prepare(DataLoader(TensorDataset(torch.ones(4, 2))))
        assert not run.step()
        assert not run.step()
    assert caplog.text.count("prepared after the run had begun") == 1


class _Own:
    """A program's own object around a scheduler."""

    def __init__(self, scheduler: Any) -> None:
        self.scheduler = scheduler

    def state_dict(self) -> dict[str, Any]:
        """Return the scheduler's."""
        return dict(self.scheduler.state_dict())

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Hand it on."""
        self.scheduler.load_state_dict(state)


@pytest.mark.parametrize("how", ["not", "prepared", "registered", "within an object"])
@pytest.mark.parametrize("is_of_prepared", [False, True])
def test_a_scheduler_that_is_not_saved_is_said(
    tmp_path: Path,
    environ: dict[str, str],
    caplog: pytest.LogCaptureFixture,
    how: str,
    *,
    is_of_prepared: bool,
) -> None:
    """It begins anew in the next life, at the rate of the first step."""
    program = Program(tmp_path, environ)
    optimizer = program.optimizer if is_of_prepared else program.optimizer.optimizer
    scheduler = torch.optim.lr_scheduler.LinearLR(optimizer)
    if how == "prepared":
        program.accelerator.prepare(scheduler)
    elif how != "not":
        kept = scheduler if how == "registered" else _Own(scheduler)
        program.accelerator.register_for_checkpointing(kept)
    with SpotwatchRun(program.ck, program.accelerator):
        pass
    assert ("neither prepared nor registered" in caplog.text) == (how == "not")


def test_a_loader_of_another_run_is_refused(tmp_path: Path, environ: dict[str, str]) -> None:
    """What it is to do between two trainings is said, and works."""
    program = Program(tmp_path, environ)
    with SpotwatchRun(program.ck, program.accelerator) as run:
        run.step()
    ck = Checkpointer(tmp_path / "store", run_id="next", environ=environ)
    with pytest.raises(ConfigError, match="free_memory"), SpotwatchRun(ck, program.accelerator):
        pass
    program.accelerator.free_memory()
    program.accelerator.prepare(
        torch.nn.Linear(2, 1), DataLoader(TensorDataset(torch.ones(8, 2)), batch_size=2)
    )
    with SpotwatchRun(ck, program.accelerator) as run:
        assert run.steps == 0


def test_a_registered_object_without_a_safe_form_is_refused_at_the_start(
    tmp_path: Path, environ: dict[str, str]
) -> None:
    """Accelerate would pickle it."""
    program = Program(tmp_path, environ)
    bad = SimpleNamespace(state_dict=lambda: {"what": object()}, load_state_dict=lambda saved: None)
    program.accelerator.register_for_checkpointing(bad)
    with (
        pytest.raises(ConfigError, match=r"registered/what: cannot save a builtins\.object"),
        SpotwatchRun(program.ck, program.accelerator),
    ):
        pass


def test_a_save_within_accumulation_fails_and_says_what_to_do(
    tmp_path: Path, environ: dict[str, str]
) -> None:
    """It would lose gradients; run.step() waits for the optimizer."""
    program = Program(tmp_path, environ, gradient_accumulation_steps=2)
    with SpotwatchRun(program.ck, program.accelerator) as run:
        for number, (batch,) in enumerate(program.loader):
            program.train(batch)
            assert not run.step()
            if number == 0:
                with pytest.raises(ConfigError, match=r"would lose gradients: call run\.step\(\)"):
                    program.ck.save(1)
    assert run.steps == 2
    assert program.ck.exit_code == 0


def test_a_loader_of_another_length_is_refused(tmp_path: Path, environ: dict[str, str]) -> None:
    """In the middle of an epoch its order would be another one."""
    program = Program(tmp_path, environ)
    with SpotwatchRun(program.ck, program.accelerator) as run:
        (batch,) = next(batches := iter(program.loader))
        program.train(batch)
        run.step()
        program.ck.save(run.steps)
        batches.close()
    forget()
    other = Program(tmp_path, environ, length=20)
    with (
        pytest.raises(StoreError, match="had 4 batches, and this loader has 10"),
        SpotwatchRun(other.ck, other.accelerator),
    ):
        pass


def test_an_evaluation_of_uneven_length_is_refused(tmp_path: Path, environ: dict[str, str]) -> None:
    """One process would wait for a batch that another does not have."""
    program = Program(tmp_path, environ)
    with SpotwatchRun(program.ck, program.accelerator) as run:
        run._accelerator = SimpleNamespace(num_processes=2, sync_gradients=True)
        uneven = SimpleNamespace(batch_sampler=SimpleNamespace(even_batches=False, drop_last=False))
        with pytest.raises(ConfigError, match="even_batches=True"):
            next(run.evaluate(uneven))
        run._accelerator = program.accelerator


def test_a_checkpointer_that_is_given_to_a_second_run_is_refused(
    tmp_path: Path, environ: dict[str, str]
) -> None:
    """So does find_executable_batch_size, if it is made outside of the function that is called again."""
    program = Program(tmp_path, environ)
    with pytest.raises(MemoryError), SpotwatchRun(program.ck, program.accelerator):
        raise MemoryError
    program.accelerator.free_memory()
    program.accelerator.prepare(
        torch.nn.Linear(2, 1), DataLoader(TensorDataset(torch.ones(8, 2)), batch_size=2)
    )
    with (
        pytest.raises(ConfigError, match=r"^this Checkpointer has another .*make a new one for each"),
        SpotwatchRun(program.ck, program.accelerator),
    ):
        pass
