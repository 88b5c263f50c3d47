# SPDX-License-Identifier: Apache-2.0
"""Where settings come from: file, environment, flags, laid over each other with the origin of each value.

It does not know which keys exist or what they mean, except for the few variables that are not settings.
"""

from __future__ import annotations

import errno
import os
import stat
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from spotwatch.errors import ConfigError

MAX_FILE_BYTES = 1024 * 1024
DEFAULT_PATH = Path("/etc/spotwatch/spotwatch.toml")
PREFIX = "SPOTWATCH_"
TOP_LEVEL = ("providers", "runtime_dir", "state_dir")
"""Settings that have a variable without `__`."""
NOT_SETTINGS = frozenset({"CONFIG", "CHECKPOINT_URL", "RUN_ID", "ALLOW_FRESH", "NOTICE", "OCCASION"})
"""Variables of the command line, the training library and hooks: neither settings nor mistakes."""

Keys = tuple[str, ...]


class EnvText(str):
    """A value from an environment variable: text that may mean a number, a truth value or a list."""

    __slots__ = ()


@dataclass(slots=True)
class Layers:
    """Values by their path (`("policy", "save_seconds")`), the last layer on top."""

    values: dict[Keys, Any] = field(default_factory=dict)
    sources: dict[Keys, str] = field(default_factory=dict)

    def put(self, keys: Keys, value: object, source: str) -> None:
        """Lay one value over what is there; a table or list of tables is laid value by value."""
        for path, leaf in _flatten(keys, value):
            self.values[path] = leaf
            self.sources[path] = source

    def replace(self, keys: Keys, value: object, source: str) -> None:
        """Lay `value` in place of everything at and below `keys`."""
        for path in [p for p in self.values if p[: len(keys)] == keys]:
            del self.values[path], self.sources[path]
        self.put(keys, value, source)

    def tree(self) -> tuple[dict[str, Any], list[str]]:
        """Return all values as nested tables, and a line for each key that is a value and a table at once."""
        root: dict[str, Any] = {}
        problems: list[str] = []
        for path, value in self.values.items():
            table: Any = root
            for key in path[:-1]:
                table = table.setdefault(key, {}) if isinstance(table, dict) else None
            there = table.get(path[-1]) if isinstance(table, dict) else value
            if value == {} and isinstance(there, dict):
                continue  # an empty section
            if not isinstance(table, dict) or path[-1] in table:
                problems.append(f"{'.'.join(path)}: is set both as a value and as a table")
            else:
                table[path[-1]] = {} if value == {} else value
        return root, problems


def read_layers(
    *, path: Path | None, environ: Mapping[str, str], flags: Mapping[str, object], default_path: Path
) -> tuple[Layers, Path | None, list[str], list[str]]:
    """Return the layers, the file that was read, problems and warnings.

    Raises:
        ConfigError: the file is missing though named, cannot be read, or is no TOML.
    """
    layers = Layers()
    found = find_file(path, environ, default_path)
    if found is not None:
        layers.put((), read_toml(found), f"file {found}")
    problems: list[str] = []
    warnings: list[str] = []
    for name, text in sorted(environ.items()):
        if not name.startswith(PREFIX):
            continue
        rest = name.removeprefix(PREFIX)
        keys = tuple(rest.lower().split("__"))
        if "" in keys or rest.startswith("_"):
            problems.append(f"{name}: names no setting; the form is {PREFIX}SECTION__KEY")
        elif len(keys) > 1 or rest.lower() in TOP_LEVEL:
            layers.put(keys, EnvText(text), f"environment {name}")
        elif rest not in NOT_SETTINGS:
            warnings.append(f"{name}: unknown variable, ignored")
    for dotted, value in flags.items():
        if value is not None:
            layers.replace(tuple(dotted.split(".")), value, "flag")
    return layers, found, problems, warnings


def find_file(path: Path | None, environ: Mapping[str, str], default_path: Path) -> Path | None:
    """Return the file to read: `path`, else `$SPOTWATCH_CONFIG`, else the default one if it exists.

    A file that was named is returned even when it is missing, so that reading it says so.
    """
    if path is not None:
        return path
    if environ.get("SPOTWATCH_CONFIG"):
        return Path(environ["SPOTWATCH_CONFIG"])
    try:
        default_path.stat()
    except OSError:
        return None
    return default_path


def read_toml(path: Path) -> dict[str, Any]:
    """Return the tables of a TOML file.

    Raises:
        ConfigError: it cannot be read or is no TOML; file, line and column are named.
    """
    try:
        return tomllib.loads(read_regular_file(path, limit=MAX_FILE_BYTES).decode("utf-8"))
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{path}: {error}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: not UTF-8 at byte {error.start}") from error
    except RecursionError as error:
        raise ConfigError(f"{path}: nested too deeply") from error
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from error


def read_regular_file(path: Path, *, limit: int) -> bytes:
    """Return the bytes of a file, links followed, which are the operator's own here.

    Raises:
        OSError: as `open`; also for what is no regular file, or has more than `limit` bytes.
    """
    # Non-blocking: a pipe that nobody writes to would hang the start, and a device has no end.
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            raise OSError(errno.EINVAL, "Not a regular file")
        with os.fdopen(fd, "rb", closefd=False) as file:
            body = file.read(limit + 1)
    finally:
        os.close(fd)
    if len(body) > limit:
        raise OSError(errno.EFBIG, f"More than {limit} bytes")
    return body


def _flatten(keys: Keys, value: object) -> Iterator[tuple[Keys, object]]:
    if isinstance(value, Mapping) and value:
        for key, inner in value.items():
            yield from _flatten((*keys, key), inner)
    elif not keys:
        return  # an empty file
    elif isinstance(value, list | tuple) and value and all(isinstance(v, Mapping) for v in value):
        for index, inner in enumerate(value):
            yield from _flatten((*keys, str(index)), inner)
    else:
        yield keys, value
