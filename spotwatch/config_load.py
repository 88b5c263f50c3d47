# SPDX-License-Identifier: Apache-2.0
"""One checked `Settings` out of file, environment and flags, or every reason why not, all at once.

It opens nothing but the configuration file and looks at secret files; it creates nothing, and imports no
provider: their config classes are handed in.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import Field, dataclass, fields, is_dataclass, replace
from pathlib import Path
from typing import Any, get_type_hints

from spotwatch import config_places
from spotwatch.config import Settings, Webhook
from spotwatch.config_check import field_checks, whole_checks
from spotwatch.config_layers import DEFAULT_PATH, Keys, Layers, read_layers
from spotwatch.config_types import Structurer, closest
from spotwatch.errors import ConfigError

Problem = tuple[Keys, str]

_HANDED_IN = ("provider", "inbound")
"""Sections whose classes the caller brings."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Loaded:
    """Checked settings, and where each came from."""

    settings: Settings
    warnings: tuple[str, ...]
    sources: Mapping[str, str]
    """For each key (`target.0.unit`): default, `file PATH`, `environment NAME` or flag."""
    path: Path | None
    """The file that was read; None: there was none."""


def _know_none(name: str) -> type:
    raise ConfigError(f"there is no {name!r} here")


def load(
    *,
    path: Path | None,
    environ: Mapping[str, str],
    flags: Mapping[str, object],
    provider_configs: Callable[[str], type],
    inbound_configs: Callable[[str], type] = _know_none,
    has_child: bool = False,
    default_path: Path = DEFAULT_PATH,
    is_writable: Callable[[Path], bool] = config_places.is_writable,
) -> Loaded:
    """Return the settings, flags over environment over file over defaults.

    Args:
        path: what `--config` names; None: `$SPOTWATCH_CONFIG`, else `default_path` if there is one.
        environ: the environment.
        flags: dotted keys and values of the command line; a None is no flag; a list replaces the whole list.
        provider_configs: the config class of a provider by name, asked only for names that are listed in
            `providers` or have a section; a ConfigError or ValueError of its own says that there is none.
        inbound_configs: the same for services that turn mail into requests, asked for those with a section.
        has_child: the trainer is a child of ours, so that a target may name nothing.
        default_path: the file that need not exist.
        is_writable: whether a directory can be written or made.

    Raises:
        ConfigError: every problem, each with its key and where the value came from.
    """
    layers, found, lines, warnings = read_layers(
        path=path, environ=environ, flags=flags, default_path=default_path
    )
    tree, clashes = layers.tree()
    lines += clashes
    sections = {key: tree.pop(key, {}) for key in _HANDED_IN}
    structurer = Structurer(fields=field_checks(environ), whole=whole_checks(has_child=has_child))

    values, problems = _make_sections(structurer, tree)
    named = [name for name in values.get("providers", ()) if name != "auto"]
    configs, more = _make_handed_in(structurer, "provider", sections["provider"], provider_configs, named)
    problems += more
    inbound, more = _make_handed_in(structurer, "inbound", sections["inbound"], inbound_configs)
    problems += more
    problems += _check_listener(values.get("webhook", Webhook()), has_inbound=bool(sections["inbound"]))
    if found is not None and layers.sources.get(("webhook", "secret"), "").startswith("file "):
        problems += _check_private(found)
    lines += [_line(keys, message, layers) for keys, message in problems]
    if lines:
        raise ConfigError(*lines)

    values |= {"provider": configs, "inbound": inbound}
    settings, places, warned = _place(Settings(**values), environ, is_writable)
    return Loaded(
        settings=settings,
        warnings=(*warnings, *warned),
        sources=_all_sources(settings, layers, places),
        path=found,
    )


def _make_sections(structurer: Structurer, tree: Mapping[str, Any]) -> tuple[dict[str, Any], list[Problem]]:
    hints = get_type_hints(Settings)
    known = {f.name: f for f in fields(Settings) if f.name not in _HANDED_IN}
    values: dict[str, Any] = {}
    problems: list[Problem] = []
    for key, value in tree.items():
        if key not in known:
            problems.append(
                ((key,), f"unknown key{closest(key, list(known)) or _elsewhere(key, known, hints)}")
            )
            continue
        made, wrong = structurer.make(value, hints[key], (key,))
        problems += [(keys, _better_place(keys, message, known, hints)) for keys, message in wrong]
        if not wrong:
            values[key] = made
    if "providers" in values:
        values["providers"] = tuple(dict.fromkeys(name.strip() for name in values["providers"]))
    return values, problems


def _make_handed_in(
    structurer: Structurer,
    section: str,
    tables: object,
    config_of: Callable[[str], type],
    named: Sequence[str] = (),
) -> tuple[dict[str, Any], list[Problem]]:
    """Return one config for each table of `section`, and for each name that is listed elsewhere."""
    if not isinstance(tables, Mapping):
        return {}, [((section,), f"is no table of tables; write [{section}.NAME]")]
    configs: dict[str, Any] = {}
    problems: list[Problem] = []
    for name in dict.fromkeys((*named, *tables)):
        keys = (section, name) if name in tables else (f"{section}s",)
        try:
            kind = config_of(name)
        except (ConfigError, ValueError) as error:
            problems.append((keys, str(error)))
            continue
        made, wrong = structurer.make(tables.get(name, {}), kind, (section, name))
        problems += wrong
        configs[name] = made
    return configs, problems


def _place(
    settings: Settings, environ: Mapping[str, str], is_writable: Callable[[Path], bool]
) -> tuple[Settings, dict[str, str], list[str]]:
    """Return the settings with both directories decided, where from, and warnings."""
    runtime_dir, state_dir = settings.runtime_dir, settings.state_dir
    places: dict[str, str] = {}
    if runtime_dir == Path():
        runtime_dir, by = config_places.choose_runtime_dir(environ, uid=os.geteuid(), is_writable=is_writable)
        places["runtime_dir"] = by if by == "default" else f"environment {by}"
    if state_dir is None:
        state_dir, by, warning = config_places.choose_state_dir(environ, is_writable=is_writable)
        places["state_dir"] = by if by == "default" else f"environment {by}"
    else:
        state_dir, warning = config_places.keep_if_writable(state_dir, is_writable=is_writable)
    placed = replace(settings, runtime_dir=runtime_dir, state_dir=state_dir)
    return placed, places, [warning] if warning else []


def _check_listener(webhook: Webhook, *, has_inbound: bool) -> Iterator[Problem]:
    if webhook.listen and not (webhook.secret or webhook.secret_files or has_inbound):
        yield (
            ("webhook",),
            (
                "listen is set without a secret, so that anyone could stop the trainer; make one with "
                "`echo whsec_$(openssl rand -base64 32)`, put it in a file of mode 0600, and name it in "
                "webhook.secret_files"
            ),
        )


def _check_private(path: Path) -> Iterator[Problem]:
    mode = stat.S_IMODE(path.stat().st_mode)
    if mode & 0o077:
        yield (
            ("webhook", "secret"),
            f"is in a file that others may read (mode {mode:04o}); chmod 600 it, or use webhook.secret_files",
        )


def _line(keys: Keys, message: str, layers: Layers) -> str:
    """Return one problem with its key and the origin of the value, as far as there is one."""
    source = layers.sources.get(keys)
    if source is None:
        below = {s for path, s in layers.sources.items() if path[: len(keys)] == keys}
        source = below.pop() if len(below) == 1 else ""
    return f"{'.'.join(keys)}: {message}" + (f" (from {source})" if source else "")


def _elsewhere(key: str, known: Mapping[str, Field[Any]], hints: Mapping[str, Any]) -> str:
    """Return where a key of this name exists, for one that was written in the wrong section."""
    places = [key] if key in known else []
    places += [
        f"{section}.{key}"
        for section in known
        if is_dataclass(hints[section]) and key in {f.name for f in fields(hints[section])}
    ]
    return f"; did you mean {' or '.join(places)}?" if places else ""


def _better_place(keys: Keys, message: str, known: Mapping[str, Field[Any]], hints: Mapping[str, Any]) -> str:
    """Return `message`, or where an unknown key belongs instead of the list of what this section has."""
    if not message.startswith("unknown key; have"):
        return message
    elsewhere = _elsewhere(keys[-1], known, hints)
    return f"unknown key{elsewhere}" if elsewhere else message


def _all_sources(settings: Settings, layers: Layers, places: Mapping[str, str]) -> dict[str, str]:
    given = {".".join(keys): source for keys, source in layers.sources.items()}
    return {key: given.get(key) or places.get(key, "default") for key in _leaves("", settings)}


def _leaves(prefix: str, value: Any) -> Iterator[str]:
    if is_dataclass(value):
        for f in fields(value):
            yield from _leaves(f"{prefix}.{f.name}".lstrip("."), getattr(value, f.name))
    elif isinstance(value, Mapping) and value:
        for key, inner in value.items():
            yield from _leaves(f"{prefix}.{key}", inner)
    elif isinstance(value, tuple) and value and all(is_dataclass(v) for v in value):
        for index, inner in enumerate(value):
            yield from _leaves(f"{prefix}.{index}", inner)
    else:
        yield prefix
