# SPDX-License-Identifier: Apache-2.0
"""Which store and which run are meant: the program's arguments, and the environment that outranks them.

A rehearsal replaces both without touching the program. Nothing is opened or written.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping

from spotwatch.errors import ConfigError
from spotwatch.train import arguments
from spotwatch.train.store import Store, open_store

# It becomes a directory, a part of a key and the name of a status file.
_RUN_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")


def resolve(
    url: str | os.PathLike[str] | Store | None,
    run_id: str | None,
    environ: Mapping[str, str],
    *,
    most_bytes_per_second: float | None = None,
) -> tuple[Store, str]:
    """Return the store of the run, and the run's id.

    Raises:
        ConfigError: one is missing or cannot be used.
    """
    run_id = environ.get("SPOTWATCH_RUN_ID") or ("" if run_id is None else run_id)
    if not isinstance(run_id, str) or not _RUN_ID.fullmatch(run_id):
        raise ConfigError(f"run_id {run_id!r}: wants 1 to 100 of A-Z a-z 0-9 . _ -, a letter or digit first")
    rate = most_bytes_per_second
    if rate is not None:
        rate = arguments.rate("most_bytes_per_second", rate)
    where = environ.get("SPOTWATCH_CHECKPOINT_URL") or url
    if where is None:
        raise ConfigError("no checkpoint URL: give one, or set SPOTWATCH_CHECKPOINT_URL")
    if isinstance(where, (str, os.PathLike)):
        return open_store(os.fspath(where), run_id, environ, most_bytes_per_second=rate), run_id
    if not hasattr(where, "put"):
        raise ConfigError(f"checkpoint URL {where!r}: wants a path, a URL, or an open store")
    return where, run_id


def is_set(environ: Mapping[str, str], name: str) -> bool:
    """Tell whether the user has switched something on, such as `SPOTWATCH_ALLOW_FRESH=1`."""
    return environ.get(name, "").lower() not in ("", "0", "false", "no")


def is_one_of_many(environ: Mapping[str, str], world_size: int | None) -> bool:
    """Tell whether another process, the first local rank, speaks to the daemon for this run."""
    return world_size != 1 and environ.get("LOCAL_RANK", "0") not in ("", "0")
