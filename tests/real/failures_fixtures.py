# SPDX-License-Identifier: Apache-2.0
"""What the tests of failures are given: S3 servers for the whole session, places in them, and trainers.

It is a plugin of pytest that each of their files names, so that they share one server of each kind.
"""

from __future__ import annotations

import contextlib
import itertools
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.real.failures_bucket import Place
from tests.real.failures_runs import TRAINER, Runs, Told, Zygote
from tests.real.s3_servers import KEY, SECRET, S3Server, start
from tests.train.launching import clean_environ

_numbers = itertools.count(1)
_LARGE = "-large"


@pytest.fixture(scope="session")
def zygote(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Zygote]:
    """Return the process that has imported torch."""
    made = Zygote(tmp_path_factory.mktemp("zygote") / "log")
    yield made
    made.close()


@pytest.fixture(scope="session")
def straight(zygote: Zygote, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Told]:
    """Return what a run without a failure says, for the same options; each is run once."""
    known: dict[tuple[str, ...], Told] = {}

    def run(*options: str) -> Told:
        if options not in known:
            folder = tmp_path_factory.mktemp("straight")
            command = [str(TRAINER), "--url", str(folder / "store"), *options]
            trainer = zygote.start(command, clean_environ(), folder / "log")
            assert trainer.end() == 0, trainer.text
            known[options] = trainer.told()
            assert known[options].digest
        return known[options]

    return run


@pytest.fixture
def runs(zygote: Zygote, tmp_path: Path, straight: Callable[..., Told]) -> Iterator[Runs]:
    """Return a starter of trainers that leaves none behind."""
    made = Runs(zygote, tmp_path, straight)
    yield made
    made.close()


@pytest.fixture(scope="session")
def s3_servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], S3Server]]:
    """Return the servers by name; each is started when it is first asked for."""
    with contextlib.ExitStack() as stack:
        known: dict[str, S3Server] = {}

        def get(name: str) -> S3Server:
            if name not in known:
                kind = name.removesuffix(_LARGE)
                known[name] = stack.enter_context(start(kind, tmp_path_factory.mktemp(name)))
            return known[name]

        yield get


@pytest.fixture
def weed_place(s3_servers: Callable[[str], S3Server]) -> Iterator[Place]:
    """Return an empty place on SeaweedFS, for failures that are not the store's."""
    place = _place(s3_servers("weed"))
    yield place
    place.clear()


@pytest.fixture
def large_place(s3_servers: Callable[[str], S3Server]) -> Iterator[Place]:
    """Return an empty place on a SeaweedFS for large checkpoints: what is removed is not free at once."""
    place = _place(s3_servers(f"weed{_LARGE}"))
    yield place
    place.clear()


@pytest.fixture(params=["weed", "rclone", "moto"])
def any_place(request: pytest.FixtureRequest, s3_servers: Callable[[str], S3Server]) -> Iterator[Place]:
    """Return an empty place on each server in turn."""
    place = _place(s3_servers(request.param))
    yield place
    place.clear()


@pytest.fixture(scope="session")
def lost_runs() -> dict[str, dict[str, bytes]]:
    """Return what lost runs have left, by the name of the server; each is made once."""
    return {}


@pytest.fixture
def lost(lost_runs: dict[str, dict[str, bytes]], any_place: Place, runs: Runs) -> Place:
    """Return a place on each server in turn, with a run that was lost there (`Runs.lose`)."""
    return _with_lost_run(lost_runs, any_place, runs)


@pytest.fixture
def weed_lost(lost_runs: dict[str, dict[str, bytes]], weed_place: Place, runs: Runs) -> Place:
    """Return a place on SeaweedFS with such a run."""
    return _with_lost_run(lost_runs, weed_place, runs)


def _with_lost_run(known: dict[str, dict[str, bytes]], place: Place, runs: Runs) -> Place:
    if place.server.name in known:
        place.fill(known[place.server.name])
    else:
        runs.lose(place)
        known[place.server.name] = place.content()
    return place


def _place(server: S3Server) -> Place:
    environ = {
        "AWS_ACCESS_KEY_ID": KEY,
        "AWS_SECRET_ACCESS_KEY": SECRET,
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_ENDPOINT_URL": server.endpoint,
        "AWS_CONFIG_FILE": os.devnull,
        "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
    }
    return Place(server, f"failures-{next(_numbers)}", environ)
