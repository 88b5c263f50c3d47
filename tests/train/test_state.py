# SPDX-License-Identifier: Apache-2.0
"""Capture and restore: a real model, optimizer and scheduler, random state, ties, and what does not fit."""

from __future__ import annotations

import copy
import gc
from typing import Any

import pytest

from spotwatch.errors import ConfigError, NoRoom, StoreError
from spotwatch.train import digest
from spotwatch.train.state.state import State

from .state_world import Tied, Trainer, captured, held

torch = pytest.importorskip("torch")
nn = torch.nn


@pytest.mark.parametrize("optimizer", ["AdamW", "SGD", "Adagrad", "NAdam", "Adamax"])
def test_losses_and_weights_go_on_bit_for_bit(optimizer: str) -> None:
    """A restored trainer computes the very losses and weights that the first one does."""
    first = Trainer(optimizer)
    for _ in range(3):
        first.step()
    kept, state = captured(first.state)
    wanted = [first.step() for _ in range(4)]
    second = Trainer(optimizer)
    second.step()
    second.state.restore(kept, state)
    assert [second.step() for _ in range(4)] == wanted
    assert digest(second.model) == digest(first.model)
    assert digest(second.optimizer) == digest(first.optimizer)


def test_tied_weights_are_stored_once() -> None:
    """One parameter under two names takes the room of one, and is tied after restoring."""
    trainer = Trainer()
    body, _ = captured(trainer.state)
    assert b"model/embed.weight" in body
    assert b"model/head.weight" not in body


def test_the_capture_is_a_copy() -> None:
    """Training on changes nothing of what was captured."""
    trainer = Trainer()
    body = held(trainer.state.capture()).view
    before = bytes(body)
    trainer.step()
    assert bytes(body) == before


def test_the_buffer_is_used_again() -> None:
    """A second save of the same size takes no further memory, and may be smaller."""
    trainer = Trainer()
    trainer.step()
    first = held(trainer.state.capture())
    second = held(trainer.state.capture())
    assert first.view.obj is second.view.obj
    assert first.fd == second.fd
    assert first.fd is not None


def test_a_restored_optimizer_owns_its_tensors() -> None:
    """Optimizer state is no view of the download, which can go."""
    trainer = Trainer()
    trainer.step()
    download, state = captured(trainer.state)
    trainer.state.restore(download, state)
    before = digest(trainer.optimizer)
    download[:] = bytes(len(download))
    assert digest(trainer.optimizer) == before


def test_two_names_of_one_tensor_stay_one() -> None:
    """A state that refers to one tensor twice does so again after restoring."""

    class Holder:
        def __init__(self) -> None:
            one = torch.arange(4.0)
            self.state: Any = {"a": one, "b": [one, one.clone(), one[:2]]}

        def state_dict(self) -> Any:
            return self.state

        def load_state_dict(self, state: Any) -> None:
            self.state = state

    source, target = State(), State()
    holder, other = Holder(), Holder()
    source.track({"ema": holder})
    target.track({"ema": other})
    body, state = captured(source)
    target.restore(body, state)
    assert other.state["a"] is other.state["b"][0]
    assert other.state["a"] is not other.state["b"][1]
    assert torch.equal(other.state["b"][2], torch.arange(2.0))


def test_another_model_is_refused_and_not_taken_for_corruption() -> None:
    """A sound checkpoint of another shape is an error of its own, so that no older one is tried instead."""
    body, state = captured(Trainer().state)
    other = State()
    other.track({"model": nn.Linear(2, 2)})
    with pytest.raises(StoreError, match="model does not fit") as caught:
        other.restore(body, state)
    assert type(caught.value) is StoreError


def test_an_object_that_the_checkpoint_lacks_is_refused() -> None:
    """Going on with, say, an EMA that starts afresh would be silent damage."""
    body, state = captured(Trainer().state)
    other = State()
    other.track({"model": Tied(), "ema": Tied()})
    with pytest.raises(StoreError, match="has no ema"):
        other.restore(body, state)


@pytest.mark.parametrize(
    ("saved", "now", "lacks"),
    [
        ("AdamW", "SGD", "dampening, momentum"),
        ("SGD", "AdamW", "betas, eps"),
        ("Adam", "NAdam", "momentum_decay"),
    ],
)
def test_another_kind_of_optimizer_is_refused(saved: str, now: str, lacks: str) -> None:
    """Its first step would fail for want of an option; the refusal names the optimizer and the options."""
    body, state = captured(Trainer(saved).state)
    with pytest.raises(StoreError, match=f"optimizer does not fit .* {now}: .* have no .*{lacks}.* run_id"):
        Trainer(now).state.restore(body, state)


def test_an_optimizer_of_an_older_version_is_taken() -> None:
    """What it did not know of yet, the optimizer adds by itself; what a schedule has put there may lack."""
    trainer = Trainer("Adam")
    del trainer.optimizer.param_groups[0]["amsgrad"], trainer.optimizer.param_groups[0]["initial_lr"]
    body, state = captured(trainer.state)
    other = Trainer("Adam")
    other.state.restore(body, state)
    assert other.optimizer.param_groups[0]["amsgrad"] is False


def test_a_loader_without_state_is_refused() -> None:
    """Something that cannot be saved is refused by name, at the time of tracking."""
    with pytest.raises(ConfigError, match="loader is a list"):
        State().track({"loader": [1]})


def test_a_class_is_refused() -> None:
    """Parentheses that were forgotten are told where they were, not by the first save."""
    with pytest.raises(ConfigError, match="model is the class Linear, not an object of it"):
        State().track({"model": nn.Linear})


def test_nothing_changes_when_a_part_cannot_be_read() -> None:
    """State is read whole before anything is restored."""
    trainer = Trainer()
    body, state = captured(trainer.state)
    broken: Any = copy.deepcopy(state)
    broken["objects"]["scheduler"] = {"$object": 1}
    trainer.step()
    before = digest(trainer.model)
    with pytest.raises(StoreError):
        trainer.state.restore(body, broken)
    assert digest(trainer.model) == before


def test_no_memory_for_the_copy_is_a_failed_save() -> None:
    """Like a full disk it may pass: the save is tried again, and training goes on."""
    state, model = State(), nn.Linear(2, 2)
    model.register_buffer("vast", torch.zeros(1).expand(2**60))
    state.track({"model": model})
    with pytest.raises(NoRoom, match=r"MiB are available: not even for a part"):
        state.capture()
    del model.vast
    assert state.capture().body.size_bytes > 0


def test_everything_that_training_moves_goes_on() -> None:
    """Averaged weights, loss scale, schedules of several kinds and their optimizer go on where they were."""

    def make() -> tuple[State, Any]:
        torch.manual_seed(5)
        model = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        averaged = torch.optim.swa_utils.AveragedModel(
            model, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(0.9)
        )
        scaler = torch.amp.GradScaler("cpu", init_scale=8.0, growth_interval=2)
        schedules = torch.optim.lr_scheduler
        warm = schedules.LinearLR(optimizer, 0.1, total_iters=2)
        cycle = schedules.OneCycleLR(optimizer, 0.2, total_steps=40)
        scheduler = schedules.SequentialLR(optimizer, [warm, cycle], [2])
        plateau = schedules.ReduceLROnPlateau(optimizer, patience=1)
        state = State()
        state.track(
            {
                "model": model,
                "optimizer": optimizer,
                "averaged": averaged,
                "scaler": scaler,
                "scheduler": scheduler,
                "plateau": plateau,
            }
        )

        def step() -> tuple[float, float, float]:
            optimizer.zero_grad()
            loss = model(torch.randn(4, 3)).square().mean()
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            scheduler.step()
            plateau.step(loss.item())
            averaged.update_parameters(model)
            return loss.item(), scaler.get_scale(), averaged.module[0].weight.sum().item()

        return state, step

    first, step = make()
    for _ in range(3):
        step()
    kept, saved = captured(first)
    wanted = [step() for _ in range(5)]
    second, again = make()
    second.restore(kept, saved)
    assert [again() for _ in range(5)] == wanted


def test_sizes_names_and_dtypes_may_change_between_saves() -> None:
    """What was prepared for one layout is not used for another, and used again for the same."""
    named: dict[str, Any] = {"a": torch.ones(1000), "b": torch.arange(4)}

    class Holder:
        def state_dict(self) -> Any:
            return dict(named)

        def load_state_dict(self, state: Any) -> None:
            named.clear()
            named.update(state)

    state = State()
    state.track({"holder": Holder()})
    changes: list[dict[str, Any]] = [
        {},
        {"a": torch.zeros(1000)},
        {"a": torch.zeros(500)},
        {"b": torch.rand(4)},
        {"c": torch.rand(3, 2_000_000)},
        {"a": torch.zeros(0)},
    ]
    for change in changes:
        named.update(change)
        wanted = dict(named)
        kept, saved = captured(state)
        state.restore(kept, saved)
        assert named.keys() == wanted.keys()
        assert all(torch.equal(named[name], value) for name, value in wanted.items())
        assert all(named[name].dtype == value.dtype for name, value in wanted.items())


def test_the_places_are_found_once_while_nothing_changes() -> None:
    """A model of thousands of tensors pays for its layout at the first save only."""
    trainer = Trainer()
    trainer.step()
    trainer.state.capture()
    places = trainer.state._places
    trainer.step()
    trainer.state.capture()
    assert trainer.state._places is places


def test_warming_makes_ready_for_the_save_that_comes() -> None:
    """The buffer has its size before the first save, and its contents are a save's own business."""
    trainer = Trainer()
    trainer.state.warm()
    staging = trainer.state._staging
    size = staging.size_bytes
    assert size > 0
    assert trainer.state.capture().body.size_bytes <= size == staging.size_bytes


def test_a_restored_buffer_may_be_used_again() -> None:
    """The download lies in the buffer of the saves: the next save must find nobody who looks into it."""

    class Keeps(nn.Module):  # type: ignore[misc, name-defined]  # as above
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(2, 2)
            self.kept = torch.arange(3.0)

        def get_extra_state(self) -> Any:
            return {"kept": self.kept}

        def set_extra_state(self, state: Any) -> None:
            self.kept = state["kept"]

    class Assigns(nn.Linear):  # type: ignore[misc, name-defined]  # as above
        def _load_from_state_dict(self, state: Any, prefix: str, *others: Any) -> None:
            self.seen = state[f"{prefix}weight"]
            super()._load_from_state_dict(state, prefix, *others)

    for module in (Keeps(), nn.Sequential(Assigns(2, 2))):
        state = State()
        state.track({"model": module})
        body = held(state.capture()).view
        state.restore(body, state.encode()[0])
        before = digest(module)
        kept = module.kept if isinstance(module, Keeps) else module[0].seen
        values = kept.clone()
        body[:] = bytes(len(body))
        assert digest(module) == before
        assert torch.equal(kept, values)


def test_the_objects_are_known_by_name() -> None:
    """Those who save parts of the state on each rank can tell which is which."""
    trainer = Trainer()
    assert trainer.state.objects["model"] is trainer.model
    assert "scaler" not in trainer.state.objects


def test_a_collection_that_is_off_stays_off() -> None:
    """Garbage is not collected while training waits; what the trainer chose is put back."""
    trainer = Trainer()
    gc.disable()
    try:
        trainer.state.capture()
        assert not gc.isenabled()
    finally:
        gc.enable()
    trainer.state.capture()
    assert gc.isenabled()


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of torch's own, when its compiler is imported
def test_wrappers_are_looked_through() -> None:
    """What a model was wrapped in is this life's; its names in the checkpoint are the model's own."""
    model = torch.nn.Linear(2, 2)
    compiled = torch.compile(model)
    state = State()
    state.track({"model": compiled})
    assert state.objects["model"] is model
    assert set(state.encode()[1]) >= {"model/weight", "model/bias"}
