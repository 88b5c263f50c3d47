# SPDX-License-Identifier: Apache-2.0
"""`adapters` on plain modules with frozen parts: which base is refused, what changes without a gradient."""

from __future__ import annotations

import logging
import zlib
from typing import Any

import pytest

from spotwatch.errors import ConfigError, StoreError
from spotwatch.train.integrations import peft_base, peft_marks
from spotwatch.train.integrations.peft import adapters

from .peft_help import Life, shake

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.timeout(120)


def made(*, seed: int = 0, dtype: Any = None, width: int = 8, bias: bool = True) -> Any:
    """Return a model whose body is frozen, and whose head is trained."""
    torch.manual_seed(seed)
    body = torch.nn.Linear(4, width, bias=bias).requires_grad_(False)
    return torch.nn.Sequential(body.to(dtype), torch.nn.Linear(width, 2))


def test_only_what_is_trained_is_saved() -> None:
    """The frozen body is in the listing of the base, with its checksum, and its tensors are nowhere else."""
    model = made()
    life = Life(model)
    assert life.names() == {"1.weight", "1.bias"}
    lines = life.adapters.state_dict()["base"]["tensors"].splitlines()
    crc = zlib.crc32(model[0].weight.detach().numpy().tobytes())
    assert lines[1] == f"{crc:08x} float32 (8,4) 0.weight"
    assert [line.split()[-1] for line in lines] == ["0.bias", "0.weight"]


def test_a_bit_of_the_base_is_enough() -> None:
    """One bit of one frozen tensor differs: refused, and the name of the tensor is said."""
    first = Life(made())
    shake(first.model)
    model = made()
    with torch.no_grad():
        model[0].weight.view(torch.int32)[7, 3] ^= 1
    second = Life(model)
    before = model[1].weight.clone()
    with pytest.raises(StoreError, match=r"0\.weight has other values\. Load that one"):
        second.go_on_from(first)
    assert torch.equal(model[1].weight, before)
    Life(made()).go_on_from(first)


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
        Life(made(**other)).go_on_from(Life(made()))


def test_both_bases_are_named(caplog: pytest.LogCaptureFixture) -> None:
    """Name and revision of both are in the refusal; where only they differ, the log says so."""
    first = Life(made(), base="some/base", revision="abc")
    with pytest.raises(StoreError, match=r"was 'some/base' at revision abc; here is 'else/where': 0\.bias"):
        Life(made(seed=1), base="else/where").go_on_from(first)
    with caplog.at_level(logging.INFO, "spotwatch.train"):
        Life(made(), base="else/where").go_on_from(first)
    assert "the base is the same, bit for bit, though it was 'some/base' at revision abc" in caplog.text


def test_name_and_revision_are_those_of_the_configuration() -> None:
    """What `from_pretrained` notes in the configuration is what the checkpoint names."""
    model = made()
    model.config = type("Config", (), {"_name_or_path": "some/base", "_commit_hash": "1f2e"})()
    base = adapters(model).state_dict()["base"]
    assert (base["name"], base["revision"]) == ("some/base", "1f2e")


def test_statistics_of_a_frozen_normalisation_are_saved() -> None:
    """A frozen BatchNorm in train mode goes on counting: its statistics come back."""

    def model() -> Any:
        torch.manual_seed(0)
        return torch.nn.Sequential(torch.nn.BatchNorm1d(4).requires_grad_(False), torch.nn.Linear(4, 2))

    first, second = Life(model()), Life(model())
    first.model(torch.rand(8, 4))
    assert {"0.running_mean", "0.running_var", "0.num_batches_tracked"} <= first.names()
    second.go_on_from(first)
    assert torch.equal(second.model[0].running_var, first.model[0].running_var)
    assert "0.weight" not in second.names()


def test_what_is_unfrozen_is_saved_from_then_on() -> None:
    """A schedule unfreezes the body: it comes back, trainable; frozen again, it is still saved."""
    first, second = Life(made()), Life(made())
    first.model[0].requires_grad_(True)
    shake(first.model)
    assert "0.weight" in first.names()
    second.go_on_from(first)
    assert torch.equal(second.model[0].weight, first.model[0].weight)
    assert second.model[0].weight.requires_grad
    second.model[0].requires_grad_(False)
    third = Life(made())
    third.go_on_from(second)
    assert torch.equal(third.model[0].weight, first.model[0].weight)
    assert not third.model[0].weight.requires_grad
    assert "0.weight" in third.names()


@pytest.mark.parametrize("past_the_count", [False, True])
def test_what_changes_though_frozen_is_saved(
    *, past_the_count: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """A teacher that follows its student has no gradients: found and said, and it comes back."""
    first, second = Life(made()), Life(made())
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
    model = made()
    life = Life(model)
    model.load_state_dict(made().state_dict() | {"1.weight": model[1].weight, "1.bias": model[1].bias})
    assert life.names() == {"1.weight", "1.bias"}
    assert not caplog.records


def test_frozen_tensors_that_are_asked_for_are_saved_too() -> None:
    """`also` takes what a method has changed in the base before training: there the base may differ."""
    first, second = Life(made(), also="0.w*"), Life(made(seed=1, bias=True), also=["0.w*"])
    second.model[0].bias.data.copy_(first.model[0].bias)
    second = Life(second.model, also=["0.w*"])
    second.go_on_from(first)
    assert torch.equal(second.model[0].weight, first.model[0].weight)
    assert first.names() == {"0.weight", "1.weight", "1.bias"}


def test_a_frozen_base_that_is_wrapped_too_late_is_refused() -> None:
    """Modules renamed after `resume` would leave their tensors out: refused, before anything is saved."""
    life = Life(made())
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
    model = made()
    model[0].weight.ds_id = 3
    with pytest.raises(ConfigError, match=r"0\.weight is split by DeepSpeed ZeRO-3"):
        adapters(model).state_dict()


def test_a_checkpoint_of_a_whole_model_is_refused() -> None:
    """Of a run that tracked the model itself, the error says to do so again."""
    with pytest.raises(StoreError, match="track the model itself"):
        adapters(made()).load_state_dict(made().state_dict())


class Quantized(torch.nn.Module):  # type: ignore[name-defined]  # torch is asked for, not imported
    """A layer as quantizing libraries make them: packed bytes as a buffer, scales in an object beside."""

    def __init__(self, scale: float) -> None:
        super().__init__()
        self.register_buffer("packed", torch.arange(64, dtype=torch.uint8).reshape(8, 8))
        self.weight = torch.nn.Parameter(torch.arange(16, dtype=torch.int8), requires_grad=False)
        self.scales = {"absmax": torch.full((2,), scale)}

    def _save_to_state_dict(self, destination: Any, prefix: str, keep_vars: bool) -> None:
        super()._save_to_state_dict(destination, prefix, keep_vars)
        # A new tensor each time, as bitsandbytes packs its own.
        destination[prefix + "weight.absmax"] = self.scales["absmax"].clone()


def test_quantized_layers_are_part_of_the_base() -> None:
    """Bytes, and scales that only `state_dict` shows, are compared; none is saved."""

    def model(scale: float) -> Any:
        torch.manual_seed(0)
        return torch.nn.Sequential(Quantized(scale), torch.nn.Linear(2, 2))

    first = Life(model(1.0))
    shake(first.model)
    assert first.names() == {"1.weight", "1.bias"}
    assert first.adapters.state_dict()["base"]["tensors"].count("\n") == 2
    Life(model(1.0)).go_on_from(first)
    with pytest.raises(StoreError, match=r"0\.weight\.absmax has other values"):
        Life(model(2.0)).go_on_from(first)


def test_tensors_made_of_others_are_looked_into() -> None:
    """A tensor subclass that holds others, as torchao's quantized weights do, is known by all of them."""

    class Pair(torch.Tensor):  # type: ignore[name-defined]  # likewise
        @staticmethod
        def __new__(cls: Any, one: Any, other: Any) -> Any:
            return torch.Tensor._make_wrapper_subclass(cls, one.shape, dtype=one.dtype)

        def __init__(self, one: Any, other: Any) -> None:
            self.one, self.other = one, other

        @classmethod
        def __torch_dispatch__(cls, func: Any, *_: Any) -> Any:
            raise AssertionError(f"{func} of the whole, though only its parts have bytes")

        def __tensor_flatten__(self) -> Any:
            return ["one", "other"], None

    rows = peft_base.rows({"a": Pair(torch.ones(3), torch.ones(3))})
    assert rows != peft_base.rows({"a": Pair(torch.ones(3), torch.zeros(3))})
    assert rows == peft_base.rows({"a": Pair(torch.ones(3), torch.ones(3))})


@pytest.mark.parametrize(
    "dtype", ["bfloat16", "float16", "int8", "uint8", "bool", "complex64", "float8_e4m3fn"]
)
def test_a_checksum_is_of_the_values_in_row_order(dtype: str) -> None:
    """However a tensor lies in memory, equal values have one checksum; pieces make no difference."""
    tensor = (torch.arange(24).reshape(4, 6) % 2).to(getattr(torch, dtype))
    turned = tensor.t().contiguous().t()
    assert not turned.is_contiguous()
    assert peft_base.rows({"a": tensor}) == peft_base.rows({"a": turned})
    assert peft_base.rows({"a": torch.empty(0, dtype=tensor.dtype)})["a"].startswith("00000000 ")


def test_large_tensors_are_read_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """A tensor that is larger than a piece has the checksum of all its bytes."""
    tensor = torch.arange(1000, dtype=torch.int64)
    whole = peft_base.rows({"a": tensor})
    monkeypatch.setattr(peft_base, "_PIECE_BYTES", 60)
    assert peft_base.rows({"a": tensor}) == whole
    assert whole["a"] == f"{zlib.crc32(tensor.numpy().tobytes()):08x} int64 (1000)"


def test_samples_of_an_accelerator_are_those_of_the_memory() -> None:
    """What is fetched from another device by one copy is, for each tensor, what lies there."""
    tensors = {"a": torch.arange(100), "b": torch.arange(3, dtype=torch.int8), "c": torch.arange(64)[5:]}
    pieces = {}
    for name, tensor in tensors.items():
        memory = peft_marks._bytes(tensor)
        assert bytes(memory.tolist()) == tensor.numpy().tobytes()
        pieces[name] = [memory[:64], memory[-64:]]
    expected = {name: b"".join(bytes(piece.tolist()) for piece in both) for name, both in pieces.items()}
    assert peft_marks._fetched(pieces | {"none": []}) == expected | {"none": b""}
    assert peft_marks._fetched({"none": []}) == {"none": b""}


def test_a_tied_tensor_is_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Under two names it has two rows and one reading."""
    read: list[Any] = []

    def count(tensor: Any) -> str:
        read.append(tensor)
        return "00000000"

    monkeypatch.setattr(peft_base, "_crc32", count)
    weight = torch.ones(2)
    assert len(peft_base.rows({"a": weight, "b": weight})) == 2
    assert len(read) == 1


def test_wrappers_make_no_difference() -> None:
    """Compiled or not, as a whole or in parts, the names are the same."""
    plain, whole, part = made(), made(), made()
    whole = torch.compile(whole, backend="eager")
    part[0] = torch.compile(part[0], backend="eager")
    first = Life(plain)
    shake(plain)
    for model in (whole, part):
        life = Life(model)
        life.go_on_from(first)
        assert life.names() == first.names()
