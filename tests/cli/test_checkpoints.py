# SPDX-License-Identifier: Apache-2.0
"""`checkpoints` finds the run that a URL means, and `list` has a row for all that lies there."""

from __future__ import annotations

from pathlib import Path

import pytest
from botocore.exceptions import ClientError, EndpointConnectionError, NoCredentialsError

from spotwatch.cli.checkpoints.run import _mend
from spotwatch.errors import StoreError
from spotwatch.train.registry.manifest import LATEST, MANIFEST
from tests.train.s3_stand_in import Call, Reply, S3StandIn, refusal

from .checkpoint_runs import (
    RUN,
    checkpoints,
    directory_of,
    everything,
    file_of,
    held_by_a_stranger,
    leave_unfinished,
    registry_of,
    train,
)

torch = pytest.importorskip("torch")

_NOBODY = {
    "AWS_ACCESS_KEY_ID": None,
    "AWS_SECRET_ACCESS_KEY": None,
    "AWS_SESSION_TOKEN": None,
    "AWS_PROFILE": None,
    "AWS_SHARED_CREDENTIALS_FILE": "/nonexistent",
    "AWS_CONFIG_FILE": "/nonexistent",
    "AWS_EC2_METADATA_DISABLED": "true",
}


def test_each_checkpoint_has_a_row(root: Path) -> None:
    """Latest, parent, complete, unhealthy, quarantined, incomplete, damaged; the newest first."""
    train(root.parent, 6, sick=4)
    leave_unfinished(root, 7, 2)
    registry_of(root).quarantine(directory_of(root, 2).name, "a bit has turned over")
    (directory_of(root, 1) / MANIFEST).write_bytes(b"{")
    told = checkpoints("list", root, "--json")
    assert told.code == 0
    document = told.document
    assert [(row["step"], row["state"], row["role"]) for row in document["checkpoints"]] == [
        (7, "incomplete", ""),
        (6, "complete", "latest"),
        (5, "complete", "parent"),
        (4, "unhealthy", ""),
        (3, "complete", ""),
        (2, "quarantined", ""),
        (1, "damaged", ""),
    ]
    assert document["latest"] == {
        "dir": directory_of(root, 6).name,
        "step": 6,
        "generation": 2,
        "problem": "",
    }
    assert document["run_id"] == RUN
    assert document["lease"]["state"] == "free"
    assert document["lease"]["released"] == "finished"
    row = document["checkpoints"][1]
    assert sorted(row) == [
        "created_at", "dir", "files", "generation", "note", "role", "size_bytes", "state", "step",
    ]  # fmt: skip
    text = checkpoints("list", root).out
    assert ": 7 checkpoints (1 damaged, 1 quarantined, 1 incomplete), " in text
    assert "a bit has turned over" in text
    assert "complete, latest" in text
    assert max(map(len, text.splitlines()[1:])) <= 100


def test_a_truncated_file_is_listed_as_damaged(root: Path) -> None:
    """One glance at the list must not call good what no resume could use."""
    path = file_of(root, 3)
    path.write_bytes(path.read_bytes()[:-1])
    told = checkpoints("list", root)
    assert told.code == 0
    assert ": 3 checkpoints (1 damaged), " in told.out
    assert "damaged, latest" in told.out
    assert f"{path.name} has {path.stat().st_size} bytes, the manifest says " in told.out


def test_looking_changes_nothing(root: Path) -> None:
    """Neither a probe nor a mark nor a lock is left, also with a damaged checkpoint."""
    file_of(root, 2).write_bytes(b"short")
    before = everything(root)
    for words in (["list"], ["show"], ["verify", "--all"], ["prune", "--keep", "2", "--dry-run"]):
        checkpoints(words[0], root, *words[1:])
    assert everything(root) == before


def test_long_names_fit_the_width(root: Path) -> None:
    """A row loses the begin of its directory's name before it is broken by the terminal."""
    long = root / f"step-{10**15 - 1}-g{10**9 - 2}-{'x' * 32}"
    long.mkdir()
    (long / "rank-00000.safetensors").write_bytes(b"1")
    lines = checkpoints("list", root).out.splitlines()[1:]
    assert max(map(len, lines)) <= 100
    assert any("…" in each and each.endswith("xxxx") for each in lines)


@pytest.mark.parametrize(
    ("body", "problem"),
    [
        (b"{", "not JSON"),
        (
            b'{"version":1,"dir":"step-000000009-g1-feed","manifest_crc":"00000000","step":9,"generation":1}',
            "names step-000000009-g1-feed, which is not there",
        ),
    ],
)
def test_a_pointer_that_leads_nowhere_is_told(root: Path, body: bytes, problem: str) -> None:
    """The rows are shown all the same; `show` without a name cannot go on."""
    (root / LATEST).write_bytes(body)
    document = checkpoints("list", root, "--json").document
    assert problem in document["latest"]["problem"]
    assert [row["role"] for row in document["checkpoints"]] == ["", "", ""]
    assert problem in checkpoints("list", root).out
    assert checkpoints("show", root).code == 1
    assert checkpoints("show", root, "2").code == 0


def test_a_folder_of_runs_is_listed_by_run(root: Path) -> None:
    """Only `list` takes several; the others say which there are; --run-id chooses."""
    train(root.parent, 1, run_id="other")
    runs = checkpoints("list", root.parent, "--json").document["runs"]
    assert [(run["run_id"], run["checkpoints"], run["latest"]) for run in runs] == [
        ("other", 1, True),
        (RUN, 3, True),
    ]
    assert "2 runs" in checkpoints("list", root.parent).out
    for deed in ("show", "verify", "prune"):
        told = checkpoints(deed, root.parent)
        assert told.code == 2
        assert "other, run" in told.err
    chosen = checkpoints("list", root.parent.as_uri(), "--run-id", "other", "--json").document
    assert (chosen["run_id"], len(chosen["checkpoints"])) == ("other", 1)


def test_a_folder_of_one_run_is_that_run(root: Path) -> None:
    """There is nothing to choose."""
    assert checkpoints("show", root.parent, "--json").document["run_id"] == RUN


def test_what_a_trainer_is_given_does_not_outrank_what_is_typed(root: Path) -> None:
    """The variables that redirect a trainer redirect no look at another run."""
    env = {"SPOTWATCH_RUN_ID": "elsewhere", "SPOTWATCH_CHECKPOINT_URL": "/nonexistent"}
    assert checkpoints("list", root.parent, "--run-id", RUN, env=env).code == 0


@pytest.mark.parametrize("deed", ["list", "show", "verify", "prune"])
def test_nothing_there_is_said(tmp_path: Path, deed: str) -> None:
    """An empty place and a missing one are no empty table."""
    for words in ([tmp_path], [tmp_path / "missing"], [tmp_path, "--run-id", "run"]):
        told = checkpoints(deed, *words)
        assert told.code == 1
        assert "holds no checkpoint" in told.err
        assert told.out == ""


def test_a_run_that_has_not_saved_yet_shows_who_has_it(tmp_path: Path) -> None:
    """There is a lease and no checkpoint: exit 1, but not a word of a wrong URL."""
    root = tmp_path / RUN
    with held_by_a_stranger(root, is_renewed=False):
        told = checkpoints("list", root)
    assert told.code == 1
    assert "far, pid 4711" in told.out


@pytest.mark.parametrize(
    ("url", "wanted"),
    [
        ("http://host/x", "no store for http://"),
        ("s3://", "names no bucket"),
        ("s3://bucket", "bucket alone"),
        ("s3://key:secret@bucket/x", "credentials belong in the environment"),
        ("file://host/x", "three slashes"),
        ("http://[", "Invalid IPv6"),
    ],
)
def test_a_bad_url_is_a_usage_error(url: str, wanted: str) -> None:
    """Exit 2, with what would be right; no secret is repeated."""
    told = checkpoints("list", url)
    assert told.code == 2
    assert wanted in told.err
    assert "secret@" not in told.err


def test_a_bad_run_id_is_a_usage_error(root: Path) -> None:
    """It is refused before anything is asked of a store."""
    assert checkpoints("list", root.parent, "--run-id", "../x").code == 2


def test_missing_credentials_are_named() -> None:
    """What is to be set is said."""
    told = checkpoints("list", "s3://bucket/x", env=_NOBODY)
    assert told.code == 1
    assert "AWS_ACCESS_KEY_ID" in told.err


def test_a_refusal_says_what_to_look_at() -> None:
    """403 is about credentials, policy or clock; a bucket that is not there about its name."""
    answers = {"denied": refusal(403, "AccessDenied"), "missing": refusal(404, "NoSuchBucket")}
    told = {}
    with S3StandIn() as server:
        env = {"AWS_ACCESS_KEY_ID": "x", "AWS_SECRET_ACCESS_KEY": "y", "AWS_ENDPOINT_URL": server.url}
        for name, answer in answers.items():

            def fault(call: Call, answer: Reply = answer) -> Reply:
                return answer

            server.fault = fault
            told[name] = checkpoints("list", "s3://bucket/x", env=env)
    assert [one.code for one in told.values()] == [1, 1]
    assert "check the credentials" in told["denied"].err
    assert "check the bucket's name" in told["missing"].err


@pytest.mark.parametrize(
    ("cause", "mend"),
    [
        (EndpointConnectionError(endpoint_url="http://x"), "check the network"),
        (NoCredentialsError(), "AWS_PROFILE"),
        (ClientError({"Error": {"Code": "NoSuchBucket"}}, "ListObjectsV2"), "bucket's name"),
        (PermissionError(13, "Permission denied"), "run it as the user"),
        (OSError(5, "Input/output error"), ""),
    ],
)
def test_what_to_do_follows_from_the_cause(cause: Exception, mend: str) -> None:
    """Also from one that lies deeper; where nothing is known nothing is invented."""
    inner, outer = StoreError("cannot list"), StoreError("3 tries")
    inner.__cause__, outer.__cause__ = cause, inner
    assert mend in _mend(outer)
    assert bool(_mend(outer)) == bool(mend)


@pytest.mark.parametrize("deed", ["list", "show", "verify", "prune"])
def test_each_help_shows_an_example(deed: str) -> None:
    """Each subcommand is shown in use."""
    assert f"spotwatch checkpoints {deed} " in checkpoints(deed, "--help").out
