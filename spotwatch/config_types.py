# SPDX-License-Identifier: Apache-2.0
"""How plain values become dataclasses: strictly, and with every mistake at its path.

`"false"` is no truth value, a string is no list, NaN is no duration. It knows types and the endings of names
(`_seconds`, `_bytes`), no single setting; those are `config_check`'s.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields, is_dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal, get_args, get_origin, get_type_hints

import cattrs
from cattrs.errors import (
    AttributeValidationNote,
    BaseValidationError,
    ClassValidationError,
    ForbiddenExtraKeysError,
    IterableValidationError,
    IterableValidationNote,
)
from cattrs.gen import make_dict_structure_fn, override

from spotwatch.config_layers import EnvText, Keys
from spotwatch.config_values import (
    check_measure,
    read_items,
    read_json,
    read_number,
    read_path,
    read_text,
    read_truth,
    read_whole_number,
    show,
)

Refine = Callable[[Any], Any]
"""Return the value to keep, or raise ValueError with what is wrong."""


class Structurer:
    """Makes dataclasses of tables.

    Args:
        fields: for a class, what else must hold for one of its fields.
        whole: for a class, what must hold for all its fields together.
    """

    def __init__(
        self, *, fields: Mapping[type, Mapping[str, Refine]], whole: Mapping[type, Callable[[Any], None]]
    ) -> None:
        self._fields = fields
        self._whole = whole
        converter = cattrs.Converter(detailed_validation=True, forbid_extra_keys=True)
        for kind, hook in (
            (bool, read_truth),
            (int, read_whole_number),
            (float, read_number),
            (str, read_text),
            (Path, read_path),
        ):
            converter.register_structure_hook(kind, hook)
        converter.register_structure_hook_factory(is_dataclass, self._dataclass_hook)
        converter.register_structure_hook_factory(_is_literal, _literal_hook)
        converter.register_structure_hook_factory(_is_items, self._items_hook)
        converter.register_structure_hook_factory(_is_mapping, self._mapping_hook)
        self._converter = converter

    def make(self, value: object, kind: Any, keys: Keys) -> tuple[Any, list[tuple[Keys, str]]]:
        """Return `value` as `kind` and no problems, or None and all problems, each with its path."""
        try:
            return self._converter.structure(value, kind), []
        except Exception as error:  # noqa: BLE001 - a foreign config class may raise anything
            return None, list(_problems(error, keys))

    def _dataclass_hook(self, cls: type) -> Callable[[Any, Any], Any]:
        refine = self._fields.get(cls, {})
        hints = get_type_hints(cls)
        # Any: cattrs' own signature has no place for fields beside its options.
        hooks: dict[str, Any] = {
            f.name: override(struct_hook=self._field_hook(f.name, hints[f.name], refine.get(f.name)))
            for f in fields(cls)
        }
        make: Any = make_dict_structure_fn(
            cls, self._converter, _cattrs_forbid_extra_keys=True, _cattrs_detailed_validation=True, **hooks
        )
        whole = self._whole.get(cls)

        def structure(value: Any, kind: Any) -> Any:
            if not isinstance(value, Mapping):
                raise TypeError(f"{show(value)} is no table")
            try:
                made = make(value, kind)
            except BaseValidationError as error:
                known = {key: v for key, v in value.items() if key in hooks}
                unknown_only = all(isinstance(e, ForbiddenExtraKeysError) for e in error.exceptions)
                if whole is None or not unknown_only:
                    raise  # what holds for all fields cannot be told without each of them
                try:
                    whole(make(known, kind))
                except ValueError as more:
                    raise ClassValidationError("", [*error.exceptions, more], cls) from error
                raise
            if whole is not None:
                whole(made)
            return made

        return structure

    def _field_hook(self, name: str, kind: Any, refine: Refine | None) -> Callable[[Any, Any], Any]:
        measure = partial(check_measure, name) if name.endswith(("_seconds", "_bytes")) else None

        def structure(value: Any, _: Any) -> Any:
            # Looked up late: the class may hold itself.
            made = self._converter.structure(value, kind)
            if measure is not None:
                measure(made)
            return made if refine is None else refine(made)

        return structure

    def _items_hook(self, kind: Any) -> Callable[[Any, Any], Any]:
        inner = get_args(kind)[0]
        origin = get_origin(kind)

        def structure(value: Any, _: Any) -> Any:
            made, errors = [], []
            for index, item in enumerate(read_items(value, tables=is_dataclass(inner))):
                try:
                    made.append(self._converter.structure(item, inner))
                except Exception as error:  # noqa: BLE001 - as in `make`
                    error.add_note(IterableValidationNote("", index, inner))
                    errors.append(error)
            if errors:
                raise IterableValidationError("", errors, kind)
            return origin(made)

        return structure

    def _mapping_hook(self, kind: Any) -> Callable[[Any, Any], Any]:
        inner = (*get_args(kind), str, Any)[1]

        def structure(value: Any, _: Any) -> Any:
            if isinstance(value, EnvText) and value.lstrip().startswith("{"):
                value = read_json(value)
            if not isinstance(value, Mapping):
                raise TypeError(f"{show(value)} is no table")
            return {str(k): self._converter.structure(v, inner) for k, v in value.items()}

        return structure


def closest(wrong: str, known: list[str]) -> str:
    """Return `; did you mean …?` for the nearest of `known`, or nothing."""
    near = difflib.get_close_matches(wrong, known, n=1, cutoff=0.6)
    return f"; did you mean {near[0]}?" if near else ""


def _problems(error: BaseException, keys: Keys) -> Iterator[tuple[Keys, str]]:
    """Yield a path and a message for each leaf of cattrs' tree of errors."""
    for note in getattr(error, "__notes__", ()):
        if isinstance(note, AttributeValidationNote):
            keys = (*keys, note.name)
        elif isinstance(note, IterableValidationNote):
            keys = (*keys, str(note.index))
    if isinstance(error, BaseValidationError):
        for inner in error.exceptions:
            yield from _problems(inner, keys)
    elif isinstance(error, ForbiddenExtraKeysError):
        known = [f.name for f in fields(error.cl)]
        for key in sorted(error.extra_fields):
            have = "" if closest(key, known) else f"; have {', '.join(known) or 'none'}"
            yield (*keys, key), f"unknown key{closest(key, known)}{have}"
    elif isinstance(error, KeyError):
        yield (*keys, str(error.args[0])), "is missing"
    else:
        yield keys, str(error) or type(error).__name__


def _literal_hook(kind: Any) -> Callable[[Any, Any], Any]:
    allowed = get_args(kind)

    def structure(value: Any, _: Any) -> Any:
        for option in allowed:
            if value == option and isinstance(value, type(option)):
                return option
        raise ValueError(f"{show(value)} is none of {', '.join(repr(a) for a in allowed)}")

    return structure


def _is_items(kind: Any) -> bool:
    args = get_args(kind)
    origin = get_origin(kind)
    return (origin is tuple and len(args) == 2 and args[1] is ...) or origin in (list, set, frozenset)  # noqa: PLR2004 - tuple[X, ...]


def _is_literal(kind: Any) -> bool:
    origin: Any = get_origin(kind)
    return origin is Literal


def _is_mapping(kind: Any) -> bool:
    return get_origin(kind) in (dict, Mapping)
