# SPDX-License-Identifier: Apache-2.0
"""Whatever a base is made of, `adapters` looks at all of its bytes, and keeps what is no tensor."""

from __future__ import annotations

import zlib
from typing import Any

import pytest

from spotwatch.errors import ConfigError, StoreError
from spotwatch.train.integrations import peft_base, peft_marks
from spotwatch.train.integrations.peft import adapters

from .peft_help import Life, halved, shake

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.timeout(120)


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


class Scaled(torch.nn.Module):  # type: ignore[name-defined]  # likewise
    """A layer with state of its own beside its tensors, as those that count magnitudes for FP8."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[float] = []

    def get_extra_state(self) -> Any:
        """Return it."""
        return list(self.seen)

    def set_extra_state(self, state: Any) -> None:
        """Take it back."""
        self.seen = state


def test_a_modules_own_word_is_saved() -> None:
    """What a module says by `get_extra_state` comes back, and a model without it is refused."""
    first, second = Life(halved().append(Scaled())), Life(halved().append(Scaled()))
    first.model[2].seen.append(0.5)
    second.go_on_from(first)
    assert second.model[2].seen == [0.5]
    with pytest.raises(StoreError, match="2: with state of its own in one model, and not in the other"):
        Life(halved()).go_on_from(first)


@pytest.mark.filterwarnings("ignore:torch.quantize_per_tensor:UserWarning")  # torch's own, of such tensors
def test_what_torch_has_quantized_is_refused() -> None:
    """Layers that hide packed weights in a tuple of their `state_dict` are found, and cannot be compared."""
    packed = torch.quantize_per_tensor(torch.ones(2, 2), 0.1, 0, torch.qint8)
    model = halved()
    model.register_state_dict_post_hook(lambda _m, state, *_: state.__setitem__("packed", (packed, None)))
    with pytest.raises(
        ConfigError, match=r"packed\.0: the bytes of a tensor that is sparse or quantized by torch"
    ):
        adapters(model).state_dict()


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
