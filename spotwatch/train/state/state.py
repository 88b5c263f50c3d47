# SPDX-License-Identifier: Apache-2.0
"""What is saved and how it is put back: tracked objects and random state, as one buffer and one JSON value.

Tensors go into the buffer in safetensors form, everything else into JSON. It does not know stores, steps or
when to save. Importing it does not import torch.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from spotwatch.errors import CheckpointCorrupt, ConfigError, NoRoom, StoreError
from spotwatch.model import JSON
from spotwatch.train.parts import Body, Held, part_bytes_for
from spotwatch.train.state import encoding, rng, stateful_loader, tensors
from spotwatch.train.state.copying import Places, no_collection
from spotwatch.train.state.found import Found
from spotwatch.train.state.staging import Staging
from spotwatch.train.state.streaming import Streaming

if TYPE_CHECKING:
    import torch

log = logging.getLogger("spotwatch.train")


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What one save holds."""

    body: Body
    state: JSON
    """Everything that is no tensor."""
    tensors: JSON | None = None
    """What the body holds of tensors that several ranks share; None: it holds whole ones."""
    is_copy: bool = True
    """False: the body is made from the tensors as it is sent, so they must not change until it is."""


class State:
    """The objects of a run that make up its state, and the buffer that each save is copied into.

    Args:
        staging: the buffer; None: one of its own.
    """

    def __init__(self, staging: Staging | None = None) -> None:
        self._objects: dict[str, tuple[Any, Callable[[], Any], Callable[[Any], Any]]] = {}
        self._staging = Staging() if staging is None else staging
        self._places: Places | None = None
        self._streaming = Streaming(self._staging)

    def track(self, objects: Mapping[str, object]) -> None:
        """Add objects by name; None stands for one that this run does not use.

        Of a model wrapped by DistributedDataParallel or `torch.compile`, the model itself is tracked: the
        next life may have another wrapper, or none.

        Raises:
            ConfigError: an object can be neither read nor restored, or a name is taken.
        """
        problems = []
        for name, thing in objects.items():
            if thing is None:
                continue
            thing = unwrapped(thing)  # noqa: PLW2901 - from here on it is the model that is meant
            if "/" in name:
                problems.append(f"track: the name {name!r} contains a slash; leave it out")
            elif name in self._objects:
                problems.append(
                    f"track: {name!r} is tracked already; give the second another name, or another training "
                    f"a Checkpointer of its own"
                )
            elif isinstance(thing, type):
                # Its state_dict is there, and fails only once a save calls it.
                problems.append(f"track: {name} is the class {thing.__qualname__}, not an object of it")
            elif hasattr(thing, "state_dict") and hasattr(thing, "load_state_dict"):
                self._objects[name] = (thing, thing.state_dict, _writer(thing))
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

    @property
    def objects(self) -> dict[str, object]:
        """Return what is tracked, by name."""
        return {name: thing for name, (thing, _, _) in self._objects.items()}

    def encode(self, *, sharded: bool = False) -> tuple[JSON, dict[str, torch.Tensor]]:
        """Return everything as it is now: JSON that names tensors, and those tensors themselves, not copied.

        Args:
            sharded: take DTensors too, as they are.

        Raises:
            ConfigError: a value has no safe form, the message names its path; or an object cannot be read.
        """
        found = Found(sharded=sharded)
        state: JSON = {
            "objects": {
                name: encoding.encode(_read(name, read), name, found.save)
                for name, (_, read, _) in self._objects.items()
            },
            "rng": encoding.encode(rng.capture(), "rng", found.save),
        }
        return state, found.by_name

    def warm(self) -> None:
        """Have the buffer that a save takes now put into memory, by a thread; return at once.

        Worth calling again when the state has grown, as after the first step of an optimizer.

        Raises:
            ConfigError: as `encode`.
        """
        _, flat = self.encode()
        with contextlib.suppress(NoRoom):  # the save will say so, and go another way
            self._staging.warm(self._places_for(flat).layout.size_bytes)

    def capture(self) -> Snapshot:
        """Return everything as it is now: a copy, valid until the next call, where there is memory for one.

        Raises:
            ConfigError: as `encode`.
            StoreError: there is no memory even for a part of it.
        """
        with no_collection():
            return self._capture()

    def _capture(self) -> Snapshot:
        state, flat = self.encode()
        try:
            places = self._places_for(flat)
        except NoRoom as error:
            body = self._streaming.body(tensors.plan(flat), flat, error)
            return Snapshot(body, state, is_copy=False)
        size = places.layout.size_bytes
        self._staging.settle()
        try:
            places.fill(flat)
        except RuntimeError as error:  # torch's own lack of memory is one
            raise StoreError(f"cannot copy {size} bytes of state: {error!r}") from error
        self._staging.warm(size)
        return Snapshot(Held(self._staging.reserve(size), part_bytes_for(size), self._staging.fd), state)

    def _places_for(self, flat: Mapping[str, torch.Tensor]) -> Places:
        """Return the places of these tensors in the buffer, the same as before while nothing has changed."""
        if self._places is None or not self._places.suit(flat):
            # Let go first: what looks into a buffer without a descriptor keeps it.
            self._places = None
            layout = tensors.plan(flat)
            self._places = Places(layout, self._staging.reserve(layout.size_bytes))
        elif not self._staging.holds(self._places.buffer):
            layout = self._places.layout
            self._places = Places(layout, self._staging.reserve(layout.size_bytes))
        return self._places

    def restore(self, buffer: tensors.Buffer, state: JSON) -> None:
        """Put every tracked object and the random state back as they were at `capture`.

        Args:
            buffer: a whole file; nothing looks into it any more at return.
            state: that was captured with it.

        Raises:
            CheckpointCorrupt: this is no state of ours.
            StoreError: it is sound, but of another model: names differ, or an object refuses its part.
        """
        layout = tensors.read(buffer)
        self.restore_from(tensors.unpack(buffer, layout) if layout.places else {}, state)

    def restore_from(self, flat: Mapping[str, torch.Tensor], state: JSON) -> None:
        """Put everything back, from tensors by the names that `encode` gave them; they may be reused then.

        Raises:
            CheckpointCorrupt: as `restore`.
            StoreError: as `restore`.
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
        # Read all before changing any, so that a refusal leaves the run as it was.
        values = {
            name: encoding.decode(saved[name], _loader(thing, flat))
            for name, (thing, _, _) in self._objects.items()
        }
        chance = encoding.decode(state.get("rng"), lambda key: flat[key].clone())
        # Loaders last: workers begin with the dataset as it is then.
        for name, (thing, _, write) in sorted(
            self._objects.items(), key=lambda item: stateful_loader.is_stateful_loader(item[1][0])
        ):
            wanted = [group.keys() & thing.defaults.keys() for group in _groups(thing)]
            try:
                write(values.pop(name))
            except Exception as error:
                raise StoreError(f"the checkpoint's {name} does not fit this program's: {error}") from error
            # What an older version did not know of, `__setstate__` has added; what lacks now, a step reads.
            groups = zip(wanted, _groups(thing), strict=False)
            if lost := sorted({key for keys, group in groups for key in keys - group.keys()}):
                raise StoreError(
                    f"the checkpoint's {name} does not fit this program's {type(thing).__name__}: its "
                    f"parameter groups have no {', '.join(lost)}; set the optimizer that the run was "
                    f"trained with, or start another run_id"
                )
        # After all that may draw from it: a StatefulDataLoader has, as it began its pass.
        rng.restore(chance)


def unwrapped(thing: object) -> object:
    """Return what DistributedDataParallel and `torch.compile` were given, through any number of them."""
    wrappers = {"DistributedDataParallel": "module", "OptimizedModule": "_orig_mod"}
    while type(thing).__module__.startswith("torch.") and type(thing).__name__ in wrappers:
        thing = getattr(thing, wrappers[type(thing).__name__])
    return thing


def _writer(thing: Any) -> Callable[[Any], Any]:
    if stateful_loader.is_stateful_loader(thing):
        return functools.partial(stateful_loader.load_tracked, thing)
    write: Callable[[Any], Any] = thing.load_state_dict
    return write


def _read(name: str, read: Callable[[], Any]) -> Any:
    try:
        return read()
    except Exception as error:
        raise ConfigError(f"{name}: its state_dict() fails: {error!r}") from error


def _groups(thing: Any) -> list[dict[str, Any]]:
    """Return the parameter groups of an optimizer, and none of anything else."""
    groups = getattr(thing, "param_groups", None)
    return groups if isinstance(groups, list) and isinstance(getattr(thing, "defaults", None), dict) else []


def _loader(thing: object, flat: Mapping[str, torch.Tensor]) -> Callable[[str], torch.Tensor]:
    if _copies_in(thing):
        return flat.__getitem__
    own: dict[str, torch.Tensor] = {}

    def load(name: str) -> torch.Tensor:
        # Others keep what they are given: a copy lets the buffer go, and two names of one tensor stay one.
        if name not in own:
            own[name] = flat[name].clone()
        return own[name]

    return load


def _copies_in(thing: Any) -> bool:
    """Tell whether it is a module of which every part copies into its own tensors, as torch's own do."""
    nn = sys.modules.get("torch.nn")
    if nn is None or not isinstance(thing, nn.Module):
        return False
    if not type(thing).load_state_dict.__module__.startswith("torch.nn."):
        return False
    return all(
        type(part)._load_from_state_dict.__module__.startswith("torch.nn.")  # noqa: SLF001 - where torch lets modules differ
        and type(part).set_extra_state is nn.Module.set_extra_state
        and not part._load_state_dict_pre_hooks  # noqa: SLF001 - likewise
        for part in thing.modules()
    )
