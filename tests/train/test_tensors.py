# SPDX-License-Identifier: Apache-2.0
"""The safetensors form: by the letter of its description, for every dtype and shape, and when it lies."""

from __future__ import annotations

import json
import struct
from typing import Any

import pytest

from spotwatch.errors import CheckpointCorrupt, ConfigError
from spotwatch.train.state import tensors
from spotwatch.train.state.copying import Places
from spotwatch.train.state.found import Found

torch = pytest.importorskip("torch")

DTYPES = [name for name, _ in tensors._DTYPES.values()]


def _pack(named: dict[str, Any]) -> bytearray:
    layout = tensors.plan(named)
    buffer = bytearray(layout.size_bytes)
    Places(layout, memoryview(buffer)).fill(named)
    return buffer


def _plain(tensor: Any) -> Any:
    values = tensor.detach().resolve_conj().resolve_neg()
    return values.double() if tensor.dtype.itemsize == 1 else values


def _some(dtype: str, shape: tuple[int, ...]) -> Any:
    count = max(1, int(torch.tensor(shape).prod())) if shape else 1
    raw = torch.arange(count * 8, dtype=torch.uint8) % 2
    return (
        raw.view(getattr(torch, dtype))[:count].view(shape)
        if 0 not in shape
        else torch.empty(shape, dtype=getattr(torch, dtype))
    )


@pytest.mark.parametrize("shape", [(), (1,), (3, 5), (0, 4), (2, 1, 3)], ids=str)
@pytest.mark.parametrize("dtype", DTYPES)
def test_every_dtype_and_shape_comes_back(dtype: str, shape: tuple[int, ...]) -> None:
    """Bits, dtype and shape survive, 0-dimensional and empty ones too."""
    tensor = _some(dtype, shape)
    buffer = _pack({"t": tensor, "odd": torch.ones(3, dtype=torch.uint8)})
    back = tensors.unpack(buffer, tensors.read(buffer))["t"]
    assert back.dtype == tensor.dtype
    assert back.shape == tensor.shape
    assert tensors.raw_bytes(back) == tensors.raw_bytes(tensor)


def test_the_bytes_are_as_described() -> None:
    """A reader written from the description alone finds header, offsets and values."""
    buffer = _pack({"a": torch.tensor([[1.0, 2.0]]), "b": torch.tensor(7, dtype=torch.int64)})
    (length,) = struct.unpack("<Q", buffer[:8])
    header = json.loads(buffer[8 : 8 + length])
    data = buffer[8 + length :]
    assert buffer[8:9] == b"{"
    assert (8 + length) % 8 == 0
    assert header["a"] == {"dtype": "F32", "shape": [1, 2], "data_offsets": [8, 16]}
    assert header["b"] == {"dtype": "I64", "shape": [], "data_offsets": [0, 8]}
    assert struct.unpack("<q", data[:8]) == (7,)
    assert struct.unpack("<2f", data[8:16]) == (1.0, 2.0)


def test_the_reference_reader_agrees() -> None:
    """The safetensors package, where it is installed, reads what we write and we read what it writes."""
    reference = pytest.importorskip("safetensors.torch")
    named = {"w": torch.randn(3, 4).bfloat16(), "s": torch.tensor(True), "e": torch.empty(0, 2)}
    back = reference.load(bytes(_pack(named)))
    assert all(torch.equal(back[name], tensor) for name, tensor in named.items())
    theirs = bytearray(reference.save(named))
    ours = tensors.unpack(theirs, tensors.read(theirs))
    assert all(torch.equal(ours[name], tensor) for name, tensor in named.items())


@pytest.mark.parametrize(
    "tensor",
    [
        torch.arange(12).view(3, 4).t(),
        torch.arange(12)[::3],
        torch.ones(1).expand(4, 3),
        torch.tensor([1 + 2j]).conj(),
        torch.ones(2, requires_grad=True),
        torch.nn.Parameter(torch.rand(3)),
        torch.tensor([1 + 2j, 3 - 4j]).conj().imag,
        torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last),
        torch.arange(12).view(3, 4).t().bfloat16(),
        torch.arange(8.0).view(2, 4).t().to(torch.float8_e4m3fn),
        torch.arange(6.0)[2:].view(2, 2),
    ],
    ids=[
        "transposed",
        "strided",
        "expanded",
        "conjugate",
        "with gradient",
        "parameter",
        "negative",
        "channels last",
        "transposed bfloat16",
        "transposed float8",
        "view",
    ],
)
def test_unusual_memory_is_written_as_its_values(tensor: Any) -> None:
    """However a tensor lies in memory, its values are written in row order."""
    buffer = _pack({"t": tensor})
    back = tensors.unpack(buffer, tensors.read(buffer))["t"]
    assert torch.equal(back.double() if back.dtype.itemsize == 1 else back, _plain(tensor))


@pytest.mark.parametrize(
    ("tensor", "reason"),
    [
        (torch.eye(2).to_sparse(), "sparse"),
        (torch.empty(2, device="meta"), "meta"),
        (torch.ones(2, dtype=torch.complex128), "complex128"),
        (torch.nn.LazyLinear(2).weight, "lazy parameter without a shape"),
    ],
)
def test_what_has_no_form_is_refused(tensor: Any, reason: str) -> None:
    """A tensor that the form cannot hold is refused with its path."""
    with pytest.raises(ConfigError, match=rf"model/w.*{reason}"):
        Found().save(tensor, "model/w")


def _file(header: Any, data: bytes = b"") -> bytearray:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return bytearray(struct.pack("<Q", len(text)) + text + data)


@pytest.mark.parametrize(
    "body",
    [
        bytearray(),
        bytearray(b"\xff" * 8),
        _file(b"not json"),
        _file([1]),
        _file({"a": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}),
        _file({"a": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}, b"12345"),
        _file({"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 4]}}, b"1234"),
        _file({"a": {"dtype": "OBJ", "shape": [1], "data_offsets": [0, 4]}}, b"1234"),
        _file({"a": {"dtype": "U8", "shape": [-4, -1], "data_offsets": [0, 4]}}, b"1234"),
        _file({"a": {"dtype": "U8", "shape": [4], "data_offsets": [-4, 0]}}, b"1234"),
        _file(
            {
                "a": {"dtype": "U8", "shape": [3], "data_offsets": [0, 3]},
                "b": {"dtype": "U8", "shape": [3], "data_offsets": [1, 4]},
            },
            b"1234",
        ),
    ],
)
def test_a_lying_file_is_corrupt(body: bytearray) -> None:
    """Headers that lie about lengths, shapes or places are refused before a tensor is made."""
    with pytest.raises(CheckpointCorrupt):
        tensors.read(body)
