# SPDX-License-Identifier: Apache-2.0
"""Which run a URL means on the command line, which of its checkpoints a word means, and what to do without.

It only lists names and reads LATEST; what the checkpoints are is the business of each subcommand.
"""

from __future__ import annotations

import contextlib
import os
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar
from urllib.parse import unquote, urlsplit

import click

from spotwatch.errors import CheckpointCorrupt, ConfigError, StoreError
from spotwatch.masking import escape
from spotwatch.train.lease.form import LEASE
from spotwatch.train.options import resolve
from spotwatch.train.registry.listing import Found
from spotwatch.train.registry.manifest import LATEST, Latest, order_of
from spotwatch.train.registry.registry import Registry
from spotwatch.train.store import Entry, Store, open_store
from spotwatch.train.stores.s3_bucket import code_of

F = TypeVar("F", bound=Callable[..., Any])

_MOST_ERROR_CHARACTERS = 1_000
_MOST_RUNS_NAMED = 10
# What a trainer lets outrank its arguments must not outrank what is typed here.
_OUTRANKING = frozenset({"SPOTWATCH_CHECKPOINT_URL", "SPOTWATCH_RUN_ID"})
_NETWORK = "check the network, the region and the endpoint (AWS_ENDPOINT_URL)"
_CREDENTIALS = "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE"
# By the name of the class, since neither boto3 nor obstore is imported for it.
_MENDS = {
    "NoCredentialsError": _CREDENTIALS,
    "PartialCredentialsError": _CREDENTIALS,
    "CredentialRetrievalError": _CREDENTIALS,
    "EndpointConnectionError": _NETWORK,
    "ConnectTimeoutError": _NETWORK,
    "ReadTimeoutError": _NETWORK,
    "ConnectionClosedError": _NETWORK,
    "ProxyConnectionError": _NETWORK,
    "SSLError": _NETWORK,
    "GenericError": "check the network and the credentials",
    "UnauthenticatedError": "check the credentials",
    "PermissionDeniedError": "check the credentials and what they allow",
    "PermissionError": "run it as the user whose files they are",
    "NoSuchBucket": "check the bucket's name, the region and the endpoint (AWS_ENDPOINT_URL)",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """A run below a folder of runs, as far as a listing tells."""

    run_id: str
    checkpoints: int
    """Directories, complete or not."""
    size_bytes: int
    has_latest: bool


@dataclass(frozen=True, slots=True)
class Folder:
    """A URL that holds several runs."""

    url: str
    runs: tuple[Run, ...]


def run_options(function: F) -> F:
    """Give a subcommand the URL, `--run-id` and `--json`."""
    for decorate in (
        click.option("--json", "as_json", is_flag=True, help="One JSON document instead of text."),
        click.option("--run-id", metavar="ID", help="Of the run, when URL is the folder that holds it."),
        click.argument("url"),
    ):
        function = decorate(function)
    return function


@contextlib.contextmanager
def answering() -> Iterator[None]:
    """Turn the store's refusals into a line on standard error and exit status 1."""
    try:
        yield
    except StoreError as error:
        text = escape(str(error), limit=_MOST_ERROR_CHARACTERS)
        mend = _mend(error)
        click.echo(f"spotwatch: {text}{f'; {mend}' if mend else ''}", err=True)
        raise click.exceptions.Exit(1) from error


def find(url: str, run_id: str | None) -> Registry | Folder:
    """Return the run that is meant, or the runs of which one must be chosen.

    Raises:
        ConfigError: the URL or the id is none.
        StoreError: the store refuses, or nothing is there.
    """
    try:
        return _find(url, run_id)
    except ValueError as error:  # of urlsplit
        raise ConfigError(f"checkpoint URL {escape(url)!r}: {error}") from error


def find_one(url: str, run_id: str | None) -> Registry:
    """Return the run that is meant.

    Raises:
        ConfigError: as `find`; or there are several.
        StoreError: as `find`.
    """
    found = find(url, run_id)
    if isinstance(found, Registry):
        return found
    names = [escape(run.run_id) for run in found.runs]
    more = len(names) - _MOST_RUNS_NAMED
    listed = ", ".join(names[:_MOST_RUNS_NAMED]) + (f" and {more} more" if more > 0 else "")
    raise ConfigError(f"{escape(found.url)} holds {len(names)} runs, choose one with --run-id: {listed}")


def pointer_of(registry: Registry) -> tuple[Latest | None, str]:
    """Return LATEST, and what is wrong with it; None and "" when there is none.

    Raises:
        StoreError: the store refuses.
    """
    try:
        return registry.latest(), ""
    except CheckpointCorrupt as error:
        return None, str(error)


def pick(word: str, latest: Latest | None, found: Sequence[Found]) -> str:
    """Return the directory that `LATEST`, a step or a directory's name means.

    Raises:
        StoreError: there is none such.
        ConfigError: it may be several.
    """
    if word == LATEST:
        if latest is None:
            raise StoreError("there is no LATEST that can be read; name a step or a directory")
        return latest.dir
    if word.isascii() and word.isdigit():
        of_step = [one for one in found if one.order[1] == int(word)]
        # The later life of the run is the one that goes on.
        of_step = [one for one in of_step if one.order == of_step[0].order]
        if len(of_step) > 1:
            raise ConfigError(f"step {word} may be any of {', '.join(one.dir for one in of_step)}; name one")
        if of_step:
            return of_step[0].dir
    elif any(one.dir == word for one in found) or (latest is not None and latest.dir == word):
        return word
    raise StoreError(f"there is no checkpoint {escape(word)!r}; `spotwatch checkpoints list` shows what is")


def _find(url: str, run_id: str | None) -> Registry | Folder:
    environ = {name: value for name, value in os.environ.items() if name not in _OUTRANKING}
    if run_id is not None:
        store, run_id = resolve(url, run_id, environ)
        if not any(_is_mark(entry) for entry in store.list()):
            raise StoreError(f"{store.url} holds no checkpoint; check the URL, or leave --run-id out")
        return Registry(store, run_id)
    parts = urlsplit(url)
    if parts.scheme not in ("", "file") and not parts.path.strip("/"):
        # Its listing would be that of the whole bucket, whatever else is in there.
        open_store(url, "run", environ)
        raise ConfigError(f"{escape(url)} names a bucket alone; add the prefix, or the run with --run-id")
    store = open_store(url, "", environ)
    return _look(store, environ, url)


def _look(store: Store, environ: dict[str, str], url: str) -> Registry | Folder:
    below: dict[str, list[Entry]] = defaultdict(list)
    for entry in store.list():
        if _is_mark(entry):
            return Registry(store, _last_part(store))
        folder, slash, rest = entry.key.partition("/")
        if slash and _is_mark(inner := Entry(rest, entry.size_bytes)):
            below[folder].append(inner)
    if not below:
        raise StoreError(f"{store.url} holds no checkpoint, and neither does a folder in it; check the URL")
    if len(below) == 1:
        (run_id,) = below
        return Registry(open_store(url, run_id, environ), run_id)
    return Folder(store.url, tuple(_run(run_id, below[run_id]) for run_id in sorted(below)))


def _run(run_id: str, entries: Sequence[Entry]) -> Run:
    return Run(
        run_id=run_id,
        checkpoints=len({entry.key.partition("/")[0] for entry in entries if "/" in entry.key}),
        size_bytes=sum(entry.size_bytes for entry in entries),
        has_latest=any(entry.key == LATEST for entry in entries),
    )


def _is_mark(entry: Entry) -> bool:
    """Tell whether only the root of a run holds such an object."""
    folder, slash, _ = entry.key.partition("/")
    return order_of(folder) is not None if slash else folder in (LATEST, LEASE)


def _last_part(store: Store) -> str:
    return unquote(store.url.rstrip("/").rpartition("/")[2])


def _mend(error: BaseException) -> str:
    at: BaseException | None = error
    while at is not None:
        for name in (type(at).__name__, code_of(at)):
            if name in _MENDS:
                return _MENDS[name]
        at = at.__cause__
    return ""
