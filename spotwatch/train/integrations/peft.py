# SPDX-License-Identifier: Apache-2.0
"""A model of which only a part is trained: that part is saved, and the frozen base is named and checked.

For PEFT's adapters, and for any module with frozen parameters; peft itself is not needed. It neither loads a
base nor trains.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any

from spotwatch.errors import ConfigError, StoreError
from spotwatch.train.integrations import peft_adapters, peft_parts
from spotwatch.train.integrations.peft_base import Frozen, read
from spotwatch.train.integrations.peft_parts import Part, Parts
from spotwatch.train.integrations.versions import require
from spotwatch.train.state.state import unwrapped

if TYPE_CHECKING:
    import torch

log = logging.getLogger("spotwatch.train")

_VERSION = 1
_SHOWN = 3


def adapters(
    model: torch.nn.Module, *, base: str | None = None, revision: str | None = None, also: Iterable[str] = ()
) -> Adapters:
    """Return what to track instead of a model of which only a part is trained.

    `ck.track(model=adapters(model), optimizer=optimizer)`. Saved are: parameters that require gradients, all
    tensors of all adapters, statistics of normalisations, and what is found to have changed though frozen.
    All else is the base, of which a checkpoint holds name, revision and a CRC-32 for each tensor. `resume()`
    computes these once and refuses another base.

    Args:
        model: a PeftModel, or any module of which some parameters are frozen; also wrapped by
            DistributedDataParallel or `torch.compile`.
        base: what the base is called in messages; None: what its `config` says.
        revision: of the base; None: likewise.
        also: patterns of names (`*.base_layer.weight`) of frozen tensors that are to be saved too, such as
            those that PiSSA or LoftQ have changed before training. Each must fit one; `resume()` refuses it
            otherwise.

    Raises:
        ConfigError: this model cannot be saved in this way, or peft is too old.
    """
    return Adapters(model, base=base, revision=revision, also=also)


class Adapters:
    """What `adapters` returns: state that is read and restored like a module's."""

    is_same_on_all_ranks = True
    """Read by `spotwatch.train.ranks.sharing`: the first rank's word counts, and the tensors are divided."""

    def __init__(
        self, model: Any, *, base: str | None = None, revision: str | None = None, also: Iterable[str] = ()
    ) -> None:
        classes = {type(one).__name__ for one in model.modules()}
        if "FullyShardedDataParallel" in classes:
            raise ConfigError("FSDP1 cannot be saved; use torch.distributed.fsdp.fully_shard (FSDP2)")
        self._hooks_gradients = "DistributedDataParallel" in classes
        self.model: Any = unwrapped(model)
        if peft_parts.take_apart(self.model).layers or peft_parts.is_peft_model(self.model):
            require("peft", "0.15", "0.21")
        config = getattr(self.model, "config", None)
        self._base = base or str(getattr(config, "_name_or_path", "") or "a base without a name")
        self._revision = revision or getattr(config, "_commit_hash", None)
        self._also = (also,) if isinstance(also, str) else tuple(also)
        self._frozen = Frozen()
        """The base. What has changed or was trained once is never part of it again, and is saved."""
        self._extras: set[str] = set()
        """Names of the base that belong to no parameter or buffer."""
        self._has_looked = False

    def state_dict(self) -> dict[str, Any]:
        """Return what training changes, not copied, and what the base is; the first call reads all of it.

        Raises:
            ConfigError: adapters are merged into the base, or frozen tensors have gone or have no values.
        """
        found = self._look()
        parts, layers = found.tensors, found.layers
        return {
            "version": _VERSION,
            "base": {"name": self._base, "revision": self._revision, "tensors": self._frozen.listing},
            "adapters": peft_adapters.configs(self.model),
            "active": peft_adapters.active(self.model, layers),
            "disabled": peft_adapters.are_disabled(layers),
            "ranks": peft_adapters.ranks(self.model),
            "scales": peft_adapters.scales(layers),
            "extra": {name: module.get_extra_state() for name, module in found.keepers.items()},
            "trainable": [name for name, part in parts.items() if part.tensor.requires_grad],
            "tensors": {name: parts[name].tensor for name in parts if name not in self._frozen.rows},
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore it; nothing is touched unless all of it fits.

        Raises:
            StoreError: the base, the adapters or the names of what is trained differ.
            ConfigError: as `state_dict`.
        """
        if "base" not in state or state.get("version") != _VERSION:
            raise StoreError(
                "it holds no adapters of ours but, perhaps, a whole model: track the model itself, as the "
                "program that saved it did, or start another run_id"
            )
        found = self._look()
        parts, layers = found.tensors, found.layers
        saved: Mapping[str, torch.Tensor] = state["tensors"]
        problems, are_names_equal = self._compare(saved, parts)
        misplaced = peft_adapters.misplaced(layers, state["scales"])
        are_placed_alike = are_names_equal and not misplaced
        if problem := peft_adapters.difference(
            self.model, state["adapters"], are_placed_alike=are_placed_alike
        ):
            raise StoreError(problem)
        if state["disabled"] != peft_adapters.are_disabled(layers):
            word = "disabled" if state["disabled"] else "enabled"
            raise StoreError(f"the adapters were {word} when it was saved: let them be so before resume()")
        if problems or misplaced:
            raise StoreError(_told(problems or [misplaced]))
        if state["extra"].keys() != found.keepers.keys():
            odd = state["extra"].keys() ^ found.keepers.keys()
            raise StoreError(f"{_some(odd)}: with state of its own in one model, and not in the other")
        self._expect_base(state["base"], saved.keys())
        flags = dict.fromkeys(state["trainable"], True)
        self._activate(found, state["active"], flags)
        import torch  # noqa: PLC0415 - trainers bring it; this package does not need it

        with torch.no_grad():
            for name, value in saved.items():
                parts[name].tensor.copy_(value)
        for name, value in state["extra"].items():
            found.keepers[name].set_extra_state(value)
        peft_adapters.restore_scales(layers, state["scales"])
        peft_adapters.restore_ranks(self.model, state["ranks"])
        self._frozen.forget(saved)

    def named_buffers(self, *, remove_duplicate: bool = True) -> Iterator[tuple[str, torch.Tensor]]:
        """Yield the buffers by their names in the state: of many ranks, the first one's count."""
        del remove_duplicate
        for name, part in peft_parts.take_apart(self.model).tensors.items():
            if part.is_buffer:
                yield f"tensors/{name}", part.tensor

    def _look(self) -> Parts:
        """Return what there is now, after having noted which tensors are the base."""
        found = peft_parts.take_apart(self.model)
        peft_adapters.check(found.layers)
        parts, known = found.tensors, self._frozen.rows
        trained = {name for name, part in parts.items() if self._is_trained(name, part)}
        if not self._has_looked:
            self._refuse_idle(parts)
            more = peft_parts.extras(self.model, found)
            self._frozen.learn({name: parts[name].tensor for name in parts if name not in trained} | more)
            self._extras = set(more)
            self._has_looked = True
            return found
        gone = known.keys() - parts.keys() - self._extras
        if gone:
            raise ConfigError(
                f"{_some(gone)} of the base gone or renamed since resume(): wrap or rebuild the model before "
                f"it, or (merge_and_unload) after the last save"
            )
        self._frozen.forget(trained)
        base = {name: part.tensor for name, part in parts.items() if name in known}
        changed = self._frozen.changed(base)
        if changed:
            size = sum(base[name].nbytes for name in changed)
            log.warning(
                "%s changed though frozen: saved with the adapters from now on, %d bytes more (weights that "
                "follow others, or a merge that was taken back and has left rounding errors)",
                *(_some(changed), size),
            )
            self._frozen.forget(changed)
        return found

    def _refuse_idle(self, parts: Mapping[str, Part]) -> None:
        for pattern in self._also:
            if not any(fnmatchcase(name, pattern) for name in parts):
                raise ConfigError(
                    f"also={pattern!r} fits no tensor of this model, whose names are such as {_some(parts)}: "
                    f"correct the pattern, or leave it out"
                )

    def _is_trained(self, name: str, part: Part) -> bool:
        return (
            part.is_adapters
            or part.tensor.requires_grad
            or any(fnmatchcase(name, pattern) for pattern in self._also)
        )

    def _compare(
        self, saved: Mapping[str, torch.Tensor], parts: Mapping[str, Part]
    ) -> tuple[list[str], bool]:
        """Return what does not fit of what is saved, in words, and whether it has the same names."""
        problems = [f"{name} is not in this model" for name in saved if name not in parts]
        problems += [
            f"{name} is to be saved here, and was of the base"
            for name in parts
            if name not in self._frozen.rows and name not in saved
        ]
        are_names_equal = not problems
        for name, value in saved.items():
            if name in parts:
                there, now = _kind(value), _kind(parts[name].tensor)
                if there != now:
                    problems.append(f"{name} is {now} here, and was {there}")
        return problems, are_names_equal

    def _expect_base(self, base: Mapping[str, Any], saved: Iterable[str]) -> None:
        there, here = read(base["tensors"]), dict(self._frozen.rows)
        for name in saved:
            here.pop(name, None)
        if there == here:
            if (base["name"], base["revision"]) != (self._base, self._revision):
                log.info(
                    "the base is the same, bit for bit, though it was %s",
                    _origin(base["name"], base["revision"]),
                )
            return
        problems = [f"{name} is not in this base" for name in there if name not in here]
        problems += [f"{name} was not in that base" for name in here if name not in there]
        for name in there.keys() & here.keys():
            (crc, *kind), (crc_here, *kind_here) = there[name].split(" "), here[name].split(" ")
            if kind != kind_here:
                problems.append(f"{name} is {' '.join(kind_here)} here, and was {' '.join(kind)}")
            elif crc != crc_here:
                problems.append(f"{name} has other values")
        raise StoreError(
            f"the base is not the one that this run was trained on, which was "
            f"{_origin(base['name'], base['revision'])}; here is {_origin(self._base, self._revision)}: "
            f"{_told(sorted(problems))}. Load that one, in the same dtype, before resume(); or start another "
            f"run_id"
        )

    def _activate(self, found: Parts, names: list[str], flags: Mapping[str, bool]) -> None:
        """Let the same adapters be active, and the same parameters require gradients."""
        parts = found.tensors
        other = [n for n, part in parts.items() if part.tensor.requires_grad != flags.get(n, False)]
        is_active = peft_adapters.active(self.model, found.layers) == names
        if is_active and not other:
            return
        if self._hooks_gradients:
            raise StoreError(
                f"{_some(other)} trainable or frozen otherwise than when it was saved (active adapters then: "
                f"{names}); do that before DistributedDataParallel wraps the model, which asks only once"
            )
        if not is_active:
            peft_adapters.activate(self.model, names)
        for name, part in parts.items():
            if part.tensor.requires_grad != flags.get(name, False):
                part.tensor.requires_grad_(flags.get(name, False))
        log.info("trainable again, or frozen again, as when it was saved: %s", _some(other))


def _origin(name: str, revision: str | None) -> str:
    return f"{name!r}" if revision is None else f"{name!r} at revision {revision}"


def _kind(tensor: torch.Tensor) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')} {tuple(tensor.shape)}"


def _some(names: Iterable[str]) -> str:
    ordered = sorted(names)
    more = len(ordered) - _SHOWN
    return ", ".join(ordered[:_SHOWN]) + (f" and {more} more" if more > 0 else "")


def _told(problems: list[str]) -> str:
    more = len(problems) - _SHOWN
    return "; ".join(problems[:_SHOWN]) + (f"; and {more} more" if more > 0 else "")
