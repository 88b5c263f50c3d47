# SPDX-License-Identifier: Apache-2.0
"""The configuration in force as TOML, each value with where it came from, secrets masked.

What it writes can be loaded again and means the same, masked values apart. It reads nothing.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

from spotwatch.config import Settings
from spotwatch.config_load import Loaded
from spotwatch.masking import MASK, is_secret_name, mask_url

_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")
_DIGEST_DIGITS = 12
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")


def print_config(loaded: Loaded) -> str:
    """Return valid TOML of every setting."""
    lines = list(_table("", loaded.settings, loaded.sources))
    return "\n".join(lines).strip() + "\n"


def digest_settings(settings: Settings) -> dict[str, str]:
    """Return a digest of each top-level setting or section, to tell whether two daemons are set alike.

    Where a value came from does not count, and secrets go in masked: a digest gives none away. What is not
    set is left out: which directory can be written depends on who asks.
    """
    values = {f.name: getattr(settings, f.name) for f in fields(settings)}
    return {name: _digest(name, value) for name, value in values.items() if value is not None}


def _digest(key: str, value: Any) -> str:
    lines = _section(key, value, {}) if _is_table(value) else [_value(key, key, value, {})]
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()[:_DIGEST_DIGITS]


def _table(prefix: str, config: Any, sources: Mapping[str, str]) -> Iterator[str]:
    """Yield plain values first: in TOML they would belong to whatever table came before."""
    tables: list[tuple[str, Any]] = []
    for f in fields(config):
        key, value = f"{prefix}{f.name}", getattr(config, f.name)
        if _is_table(value):
            tables.append((key, value))
        else:
            yield _value(key, f.name, value, sources)
    for key, value in tables:
        yield from _section(key, value, sources)


def _section(key: str, value: Any, sources: Mapping[str, str]) -> Iterator[str]:
    if is_dataclass(value):
        yield from ("", f"[{_quoted(key)}]", *_table(f"{key}.", value, sources))
    elif isinstance(value, Mapping):
        for name, inner in value.items():
            yield from _section(f"{key}.{name}", inner, sources)
    else:
        for index, inner in enumerate(value):
            # The header has no number in TOML, the keys of the sources have.
            yield from ("", f"[[{_quoted(key)}]]", *_table(f"{key}.{index}.", inner, sources))


def _is_table(value: Any) -> bool:
    if isinstance(value, Mapping):
        return bool(value) and all(is_dataclass(v) for v in value.values())
    return is_dataclass(value) or (isinstance(value, tuple) and bool(value) and is_dataclass(value[0]))


def _value(key: str, name: str, value: Any, sources: Mapping[str, str]) -> str:
    # A table of plain values (headers) has a source for each of them.
    found = sources.get(key) or next((s for k, s in sources.items() if k.startswith(f"{key}.")), "default")
    source = _CONTROL.sub("?", found)
    if value is None:
        return f"# {name} is not set  # {source}"
    if name == "url" and isinstance(value, str):
        value = mask_url(value) if value else value
    elif is_secret_name(name) and value and isinstance(value, str):
        value = MASK
    return f"{name} = {_literal(value)}  # {source}"


def _literal(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return repr(value)
    if isinstance(value, Mapping):
        pairs = (
            f"{_string(str(k))} = {_literal(MASK if is_secret_name(str(k)) else v)}" for k, v in value.items()
        )
        return f"{{{', '.join(pairs)}}}"
    if isinstance(value, tuple | list | set | frozenset):
        return f"[{', '.join(_literal(v) for v in value)}]"
    return _string(value.as_posix() if isinstance(value, Path) else str(value))


def _string(text: str) -> str:
    """Return a TOML basic string; its escapes are those of JSON, DEL excepted."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


def _quoted(key: str) -> str:
    return ".".join(part if _BARE_KEY.fullmatch(part) else _string(part) for part in key.split("."))
