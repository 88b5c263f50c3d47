# SPDX-License-Identifier: Apache-2.0
"""`adapters` on plain modules with frozen parts: which base is refused, what changes without a gradient."""

from __future__ import annotations

import logging
import zlib
from pathlib import Path
from typing import Any

import pytest

from spotwatch.errors import ConfigError, StoreError
from spotwatch.train.integrations.peft import adapters
from spotwatch.train.ranks.layout import mesh_note

from .peft_help import Life, halved, shake

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.timeout(120)


def test_only_what_is_trained_is_saved() -> None:
    """The frozen body is in the listing of the base, with its checksum, and its tensors are nowhere else."""
    model = halved()
    life = Life(model)
    assert life.names() == {"1.weight", "1.bias"}
    lines = life.adapters.state_dict()["base"]["tensors"].splitlines()
    crc = zlib.crc32(model[0].weight.detach().numpy().tobytes())
    assert lines[1] == f"{crc:08x} float32 (8,4) 0.weight"
    assert [line.split()[-1] for line in lines] == ["0.bias", "0.weight"]


def test_a_bit_of_the_base_is_enough() -> None:
    """One bit of one frozen tensor differs: refused, and the name of the tensor is said."""
    first = Life(halved())
    shake(first.model)
    model = halved()
    with torch.no_grad():
        model[0].weight.view(torch.int32)[7, 3] ^= 1
    second = Life(model)
    before = model[1].weight.clone()
    with pytest.raises(StoreError, match=r"0\.weight has other values\. Load that one"):
        second.go_on_from(first)
    assert torch.equal(model[1].weight, before)
    Life(halved()).go_on_from(first)


@pytest.mark.parametrize(
    ("other", "told"),
    [
        ({"dtype": "bfloat16"}, r"0\.bias is bfloat16 \(8\) here, and was float32 \(8\)"),
        ({"width": 9}, r"1\.weight is float32 \(2, 9\) here, and was float32 \(2, 8\)"),
        ({"bias": False}, r"0\.bias is not in this base"),
        ({"seed": 1}, r"0\.bias has other values; 0\.weight has other values\."),
    ],
)
def test_a_base_of_another_kind_is_refused(other: dict[str, Any], told: str) -> None:
    """Another dtype, shape, name or content: each is said."""
    if "dtype" in other:
        other = {"dtype": torch.bfloat16}
    with pytest.raises(StoreError, match=told):
        Life(halved(**other)).go_on_from(Life(halved()))


def test_both_bases_are_named(caplog: pytest.LogCaptureFixture) -> None:
    """Name and revision of both are in the refusal; where only they differ, the log says so."""
    first = Life(halved(), base="some/base", revision="abc")
    with pytest.raises(StoreError, match=r"was 'some/base' at revision abc; here is 'else/where': 0\.bias"):
        Life(halved(seed=1), base="else/where").go_on_from(first)
    with caplog.at_level(logging.INFO, "spotwatch.train"):
        Life(halved(), base="else/where").go_on_from(first)
    assert "the base is the same, bit for bit, though it was 'some/base' at revision abc" in caplog.text


def test_name_and_revision_are_those_of_the_configuration() -> None:
    """What `from_pretrained` notes in the configuration is what the checkpoint names."""
    model = halved()
    model.config = type("Config", (), {"_name_or_path": "some/base", "_commit_hash": "1f2e"})()
    base = adapters(model).state_dict()["base"]
    assert (base["name"], base["revision"]) == ("some/base", "1f2e")


def test_statistics_of_a_frozen_normalisation_are_saved(caplog: pytest.LogCaptureFixture) -> None:
    """A frozen BatchNorm in train mode goes on counting: its statistics come back."""

    def model() -> Any:
        torch.manual_seed(0)
        return torch.nn.Sequential(torch.nn.BatchNorm1d(4).requires_grad_(False), torch.nn.Linear(4, 2))

    first, second = Life(model()), Life(model())
    first.model(torch.rand(8, 4))
    assert {"0.running_mean", "0.running_var", "0.num_batches_tracked"} <= first.names()
    assert not caplog.records
    second.go_on_from(first)
    assert torch.equal(second.model[0].running_var, first.model[0].running_var)
    assert "0.weight" not in second.names()


def test_what_is_unfrozen_is_saved_from_then_on(caplog: pytest.LogCaptureFixture) -> None:
    """A schedule unfreezes the body: it comes back, trainable; frozen again, it is still saved."""
    first, second = Life(halved()), Life(halved())
    first.model[0].requires_grad_(True)
    assert "0.weight" in first.names()
    shake(first.model)
    second.go_on_from(first)
    assert torch.equal(second.model[0].weight, first.model[0].weight)
    assert second.model[0].weight.requires_grad
    second.model[0].requires_grad_(False)
    third = Life(halved())
    third.go_on_from(second)
    assert torch.equal(third.model[0].weight, first.model[0].weight)
    assert not third.model[0].weight.requires_grad
    assert "0.weight" in third.names()
    assert "though frozen" not in caplog.text


@pytest.mark.parametrize("past_the_count", [False, True])
def test_what_changes_though_frozen_is_saved(
    *, past_the_count: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """A teacher that follows its student has no gradients: found and said, and it comes back."""
    first, second = Life(halved()), Life(halved())
    with torch.no_grad():
        weight = first.model[0].weight.data if past_the_count else first.model[0].weight
        weight.mul_(0.9)
    assert first.names() == {"0.weight", "1.weight", "1.bias"}
    assert (
        "0.weight changed though frozen: saved with the adapters from now on, 128 bytes more" in caplog.text
    )
    caplog.clear()
    assert "0.weight" in first.names()
    assert not caplog.records
    second.go_on_from(first)
    assert torch.equal(second.model[0].weight, first.model[0].weight)


@pytest.mark.parametrize("way", ["parameter", "freed first", "data"])
def test_a_tensor_in_the_place_of_another_is_found(way: str) -> None:
    """As many writes, and the samples the same: a new tensor in an old one's place is looked at."""
    torch.manual_seed(0)
    layer = torch.nn.Linear(64, 64).requires_grad_(False)
    layer.weight = torch.nn.Parameter(layer.weight.clone(), requires_grad=False)
    first = Life(torch.nn.Sequential(layer))
    values = layer.weight.tolist()
    values[20][20] += 1
    if way == "freed first":
        layer.weight = None  # so that the new one may get its address
    new = torch.tensor(values)
    if way == "data":
        layer.weight.data = new
    else:
        layer.weight = torch.nn.Parameter(new, requires_grad=False)
    assert layer.weight._version == 0
    assert first.names() == {"0.weight"}
    torch.manual_seed(0)
    second = Life(torch.nn.Sequential(torch.nn.Linear(64, 64).requires_grad_(False)))
    second.go_on_from(first)
    assert torch.equal(second.model[0].weight, layer.weight)


def test_the_same_values_in_another_tensor_are_no_change(caplog: pytest.LogCaptureFixture) -> None:
    """A frozen parameter replaced by a copy of itself stays of the base."""
    life = Life(halved())
    life.model[0].weight = torch.nn.Parameter(life.model[0].weight.clone(), requires_grad=False)
    assert life.names() == {"1.weight", "1.bias"}
    assert not caplog.records


def test_one_element_that_torch_writes_is_enough() -> None:
    """A write between the samples is found by torch's count, and only that tensor is saved."""
    layers = [torch.nn.Linear(64, 64).requires_grad_(False) for _ in range(2)]
    life = Life(torch.nn.Sequential(*layers))
    with torch.no_grad():
        layers[0].weight[20, 20] += 1
    assert life.names() == {"0.weight"}


def test_one_change_past_the_count_has_all_looked_at() -> None:
    """Where one tensor shows a change in its samples, one that was changed between them is found too."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(*(torch.nn.Linear(64, 64).requires_grad_(False) for _ in range(3)))
    life = Life(model)
    model[1].weight.data[20, 20] += 1
    assert life.names() == set()
    model[2].weight.data[0, 0] += 1
    assert life.names() == {"1.weight", "2.weight"}


def test_a_write_that_changes_nothing_is_no_change(caplog: pytest.LogCaptureFixture) -> None:
    """The base loaded once more with the same values stays the base."""
    model = halved()
    life = Life(model)
    model.load_state_dict(halved().state_dict() | {"1.weight": model[1].weight, "1.bias": model[1].bias})
    assert life.names() == {"1.weight", "1.bias"}
    assert not caplog.records


def test_frozen_tensors_that_are_asked_for_are_saved_too() -> None:
    """`also` takes what a method has changed in the base before training: there the base may differ."""
    first, second = Life(halved(), also="0.w*"), Life(halved(seed=1, bias=True), also=["0.w*"])
    second.model[0].bias.data.copy_(first.model[0].bias)
    second = Life(second.model, also=["0.w*"])
    second.go_on_from(first)
    assert torch.equal(second.model[0].weight, first.model[0].weight)
    assert first.names() == {"0.weight", "1.weight", "1.bias"}


@pytest.mark.parametrize("also", ["0.wieght", ["0.weight", "2.*"]])
def test_a_pattern_that_fits_nothing_is_refused(also: Any) -> None:
    """A misspelt name would leave unsaved what is to be saved: said before anything is."""
    with pytest.raises(
        ConfigError, match=r"also='(0\.wieght|2\.\*)' fits no tensor .* such as 0\.bias, 0\.weight"
    ):
        Life(halved(), also=also)


def test_a_frozen_base_that_is_wrapped_too_late_is_refused() -> None:
    """Modules renamed after `resume` would leave their tensors out: refused, before anything is saved."""
    life = Life(halved())
    life.model[0] = torch.nn.Sequential(life.model[0])
    with pytest.raises(ConfigError, match=r"0\.bias, 0\.weight of the base gone or renamed since resume\(\)"):
        life.state.encode()


def test_tensors_without_values_are_refused() -> None:
    """A base on the meta device, as offloading leaves it, cannot be checked: said at the start."""
    model = torch.nn.Sequential(torch.nn.Linear(4, 4, device="meta").requires_grad_(False))
    with pytest.raises(ConfigError, match=r"0\.weight is on the meta device"):
        adapters(model).state_dict()


def test_what_keeps_its_parts_elsewhere_is_refused() -> None:
    """FSDP1 and ZeRO-3 leave stumps of tensors: the error says what to use."""
    outer = torch.nn.Sequential(type("FullyShardedDataParallel", (torch.nn.Module,), {})())
    with pytest.raises(ConfigError, match=r"use torch\.distributed\.fsdp\.fully_shard"):
        adapters(outer)
    model = halved()
    model[0].weight.ds_id = 3
    with pytest.raises(ConfigError, match=r"0\.weight is split by DeepSpeed ZeRO-3"):
        adapters(model).state_dict()


def test_a_checkpoint_of_a_whole_model_is_refused() -> None:
    """Of a run that tracked the model itself, the error says to do so again."""
    with pytest.raises(StoreError, match="track the model itself"):
        adapters(halved()).load_state_dict(halved().state_dict())


def test_wrappers_make_no_difference() -> None:
    """Compiled or not, as a whole or in parts, the names are the same."""
    plain, whole, part = halved(), halved(), halved()
    whole = torch.compile(whole, backend="eager")
    part[0] = torch.compile(part[0], backend="eager")
    first = Life(plain)
    shake(plain)
    for model in (whole, part):
        life = Life(model)
        life.go_on_from(first)
        assert life.names() == first.names()


def test_the_mesh_of_adapters_is_told(tmp_path: Path) -> None:
    """Under FSDP2 their mesh is in the note as a model's is, and what is saved later too changes nothing."""
    rendezvous = torch.distributed.FileStore(str(tmp_path / "rendezvous"), 1)
    torch.distributed.init_process_group("gloo", store=rendezvous, rank=0, world_size=1)
    try:
        mesh = torch.distributed.device_mesh.init_device_mesh("cpu", (1,), mesh_dim_names=("shards",))
        sharded = torch.distributed.tensor.distribute_tensor(torch.ones(4), mesh)
        objects = {"model": adapters(halved()), "own": object()}
        whole = mesh_note(objects, {"model/a": torch.ones(4), "own/a": sharded})
        few = mesh_note(objects, {"model/a": sharded})
        more = mesh_note(
            objects,
            {
                "model/a": sharded,
                "model/b": sharded.redistribute(mesh, [torch.distributed.tensor.Replicate()]),
            },
        )
    finally:
        torch.distributed.destroy_process_group()
    assert (whole[0], few[0]) == ("no mesh", "shards=1")
    assert more == few != whole
