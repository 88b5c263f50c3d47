# SPDX-License-Identifier: Apache-2.0
"""What is saved and how it is put back: tracked objects and random state, as one buffer and one JSON value.

Tensors go into the buffer in safetensors form, everything else into JSON. It does not know stores, steps or
when to save. Importing it does not import torch.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from spotwatch.errors import CheckpointCorrupt, ConfigError, StoreError
from spotwatch.model import JSON
from spotwatch.train import encoding, rng, tensors

if TYPE_CHECKING:
    import torch

log = logging.getLogger("spotwatch.train")


class State:
    """The objects of a run that make up its state, and a buffer that is used again for each save."""

    def __init__(self) -> None:
        self._objects: dict[str, tuple[Any, Callable[[], Any], Callable[[Any], Any]]] = {}
        self._buffer = bytearray()

    def track(self, objects: Mapping[str, object]) -> None:
        """Add objects by name; None stands for one that this run does not use.

        Raises:
            ConfigError: an object can be neither read nor restored, or a name is taken.
        """
        problems = []
        for name, thing in objects.items():
            if thing is None:
                continue
            if name in self._objects or "/" in name:
                problems.append(f"track: the name {name!r} is taken or contains a slash")
            elif hasattr(thing, "state_dict") and hasattr(thing, "load_state_dict"):
                self._objects[name] = (thing, thing.state_dict, thing.load_state_dict)
            elif (pair := rng.adapter(thing)) is not None:
                self._objects[name] = (thing, *pair)
            else:
                problems.append(
                    f"track: {name} is a {type(thing).__qualname__} without state_dict and load_state_dict; "
                    f"use one that has them (torchdata's StatefulDataLoader), or derive it from the step"
                )
        if problems:
            raise ConfigError(*problems)

    @property
    def is_empty(self) -> bool:
        """Tell whether nothing is tracked."""
        return not self._objects

    def capture(self) -> tuple[memoryview, JSON]:
        """Return a copy of everything as it is now; the buffer is valid until the next call.

        Raises:
            ConfigError: a value has no safe form, the message names its path; or an object cannot be read.
            StoreError: there is no memory for the copy.
        """
        found = _Found()
        state: JSON = {
            "objects": {
                name: encoding.encode(_read(name, read), name, found.save)
                for name, (_, read, _) in self._objects.items()
            },
            "rng": encoding.encode(rng.capture(), "rng", found.save),
        }
        layout = tensors.plan(found.by_name)
        try:
            if len(self._buffer) < layout.size_bytes:
                # Zeroed here, so that its pages exist before the copy that training waits for.
                self._buffer = bytearray(layout.size_bytes)
            tensors.pack(layout, found.by_name, self._buffer)
        except (MemoryError, RuntimeError) as error:  # torch's own lack of memory is a RuntimeError
            raise StoreError(f"cannot copy {layout.size_bytes} bytes of state: {error!r}") from error
        return memoryview(self._buffer)[: layout.size_bytes], state

    def restore(self, buffer: bytearray, state: JSON) -> None:
        """Put every tracked object and the random state back as they were at `capture`.

        Raises:
            CheckpointCorrupt: this is no state of ours.
            StoreError: it is sound, but of another model: names differ, or an object refuses its part.
        """
        if not isinstance(state, dict) or not isinstance(state.get("objects"), dict):
            raise CheckpointCorrupt("the manifest holds no state")
        saved: dict[str, JSON] = state["objects"]
        missing = self._objects.keys() - saved.keys()
        if missing:
            raise StoreError(
                f"the checkpoint has no {', '.join(sorted(missing))}; it has {', '.join(sorted(saved))}: "
                f"track the same objects, or start another run_id"
            )
        for name in saved.keys() - self._objects.keys():
            log.warning(
                "the checkpoint holds %r, which is not tracked any more: it will not be saved again", name
            )
        layout = tensors.read(buffer)
        flat = tensors.unpack(buffer, layout) if layout.places else {}
        # Read all before changing any, so that a refusal leaves the run as it was.
        values = {
            name: encoding.decode(saved[name], _loader(thing, flat))
            for name, (thing, _, _) in self._objects.items()
        }
        chance = encoding.decode(state.get("rng"), lambda key: flat[key].clone())
        for name, (_, _, write) in self._objects.items():
            try:
                write(values.pop(name))
            except Exception as error:
                raise StoreError(f"the checkpoint's {name} does not fit this program's: {error}") from error
        rng.restore(chance)


def _read(name: str, read: Callable[[], Any]) -> Any:
    try:
        return read()
    except Exception as error:
        raise ConfigError(f"{name}: its state_dict() fails: {error!r}") from error


class _Found:
    """The tensors met in one capture; one that is met twice is stored once."""

    def __init__(self) -> None:
        self.by_name: dict[str, torch.Tensor] = {}
        self._seen: dict[tuple[object, ...], str] = {}

    def save(self, value: Any, path: str) -> str | None:
        if not tensors.is_tensor(value):
            return None
        tensors.check(value, path)
        # The same memory seen in the same way: tied weights, one state in two groups. Views stay separate.
        same = (
            value.device,
            value.data_ptr(),
            value.dtype,
            value.shape,
            value.stride(),
            value.is_conj(),
            value.is_neg(),
        )
        if value.numel() and same in self._seen:
            return self._seen[same]
        name = path
        while name in self.by_name:
            name += "~"
        # Holding it keeps its address from being given to another before the capture is over.
        self.by_name[name] = value
        self._seen[same] = name
        return name


def _loader(thing: object, flat: Mapping[str, torch.Tensor]) -> Callable[[str], torch.Tensor]:
    torch_nn = sys.modules.get("torch.nn")
    if torch_nn is not None and isinstance(thing, torch_nn.Module):
        return flat.__getitem__  # a module copies into its own parameters
    own: dict[str, torch.Tensor] = {}

    def load(name: str) -> torch.Tensor:
        # Others keep what they are given: a copy lets the download go, and two names of one tensor stay one.
        if name not in own:
            own[name] = flat[name].clone()
        return own[name]

    return load
