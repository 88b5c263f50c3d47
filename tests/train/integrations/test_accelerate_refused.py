# SPDX-License-Identifier: Apache-2.0
"""What does not fit is refused, with what to do instead."""

from __future__ import annotations

from collections.abc import Iterator
from enum import Enum
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from spotwatch.errors import ConfigError, StoreError
from spotwatch.train import Checkpointer

torch = pytest.importorskip("torch", reason="needs torch")
accelerate = pytest.importorskip("accelerate", reason="needs accelerate")
data = pytest.importorskip("torch.utils.data", reason="needs torch")
state = pytest.importorskip("accelerate.state", reason="needs accelerate")
SpotwatchRun = import_module("spotwatch.train.integrations.accelerate").SpotwatchRun

pytestmark = pytest.mark.timeout(120)


@pytest.fixture(autouse=True)
def _as_a_new_process() -> Iterator[None]:
    """Give each test an Accelerate that knows of no other, as a process of its own would."""
    state.AcceleratorState._reset_state(reset_partial_state=True)
    state.GradientState._reset_state()
    yield
    state.AcceleratorState._reset_state(reset_partial_state=True)
    state.GradientState._reset_state()


class World:
    """A program that is about to train."""

    def __init__(self, tmp_path: Path, environ: dict[str, str], length: int = 8, **options: Any) -> None:
        self.accelerator = accelerate.Accelerator(cpu=True, **options)
        model = torch.nn.Linear(2, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        loader = data.DataLoader(data.TensorDataset(torch.ones(length, 2)), batch_size=2)
        self.model, self.optimizer, self.loader = self.accelerator.prepare(model, optimizer, loader)
        self.ck = Checkpointer(tmp_path / "store", run_id="run", environ=environ, patience_seconds=0.0)

    def train(self, batch: Any) -> None:
        """Take one batch."""
        with self.accelerator.accumulate(self.model):
            self.accelerator.backward(self.model(batch).sum())
            self.optimizer.step()
            self.optimizer.zero_grad()


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
        **held, step=0, sync_gradients=True, is_fsdp2=False, distributed_type=_Kind(kind)
    )
    ck = Checkpointer(tmp_path / "store", run_id="run", environ=environ)
    with pytest.raises(ConfigError, match=f"{kind}.*{instead}"):
        SpotwatchRun(ck, stand_in)


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
        SpotwatchRun(ck, accelerate.Accelerator(cpu=True)),
    ):
        pass


def test_a_step_outside_of_the_run_is_refused(tmp_path: Path, environ: dict[str, str]) -> None:
    """Nothing was resumed there."""
    world = World(tmp_path, environ)
    run = SpotwatchRun(world.ck, world.accelerator)
    with pytest.raises(ConfigError, match="outside of `with"):
        run.step()


def test_what_is_prepared_too_late_is_refused_at_the_next_step(
    tmp_path: Path, environ: dict[str, str]
) -> None:
    """It would not be saved."""
    world = World(tmp_path, environ)
    with SpotwatchRun(world.ck, world.accelerator) as run:
        world.accelerator.prepare(torch.nn.Linear(2, 1))
        with pytest.raises(ConfigError, match="after the run had begun"):
            run.step()


def test_memory_that_is_freed_too_early_is_refused(tmp_path: Path, environ: dict[str, str]) -> None:
    """What was freed may train no more, but would be saved."""
    world = World(tmp_path, environ)
    with SpotwatchRun(world.ck, world.accelerator) as run:
        world.accelerator.free_memory()
        with pytest.raises(ConfigError, match="free_memory"):
            run.step()


def test_a_loader_that_is_prepared_later_is_said(
    tmp_path: Path, environ: dict[str, str], caplog: pytest.LogCaptureFixture
) -> None:
    """One made for each evaluation does no harm, so it is said once."""
    world = World(tmp_path, environ)
    with SpotwatchRun(world.ck, world.accelerator) as run:
        world.accelerator.prepare(data.DataLoader(data.TensorDataset(torch.ones(4, 2))))
        assert not run.step()
        assert not run.step()
    assert caplog.text.count("prepared after the run had begun") == 1


def test_a_registered_object_without_a_safe_form_is_refused_at_the_start(
    tmp_path: Path, environ: dict[str, str]
) -> None:
    """Accelerate would pickle it."""
    world = World(tmp_path, environ)
    bad = SimpleNamespace(state_dict=lambda: {"what": object()}, load_state_dict=lambda saved: None)
    world.accelerator.register_for_checkpointing(bad)
    with (
        pytest.raises(ConfigError, match=r"registered/what: cannot save a builtins\.object"),
        SpotwatchRun(world.ck, world.accelerator),
    ):
        pass


def test_a_save_within_accumulation_fails_and_says_what_to_do(
    tmp_path: Path, environ: dict[str, str]
) -> None:
    """It would lose gradients; run.step() waits for the optimizer."""
    world = World(tmp_path, environ, gradient_accumulation_steps=2)
    with SpotwatchRun(world.ck, world.accelerator) as run:
        for number, (batch,) in enumerate(world.loader):
            world.train(batch)
            assert not run.step()
            if number == 0:
                with pytest.raises(ConfigError, match=r"would lose gradients: call run\.step\(\)"):
                    world.ck.save(1)
    assert run.steps == 2
    assert world.ck.exit_code == 0


def test_a_loader_of_another_length_is_refused(tmp_path: Path, environ: dict[str, str]) -> None:
    """In the middle of an epoch its order would be another one."""
    world = World(tmp_path, environ)
    with SpotwatchRun(world.ck, world.accelerator) as run:
        for (batch,) in world.loader:
            world.train(batch)
            run.step()
            world.ck.save(run.steps)
            break
        else:
            pytest.fail("no batch")
        positions = world.ck._state.objects["loader"]
        assert positions
    _as_if_new()
    other = World(tmp_path, environ, length=20)
    with (
        pytest.raises(StoreError, match="had 4 batches, and this loader has 10"),
        SpotwatchRun(other.ck, other.accelerator),
    ):
        pass


def _as_if_new() -> None:
    state.AcceleratorState._reset_state(reset_partial_state=True)
    state.GradientState._reset_state()
