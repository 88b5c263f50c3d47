# SPDX-License-Identifier: Apache-2.0
"""The credentials of a mailbox in a file: nothing of the trainer's, and new ones without a restart."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from spotwatch.errors import ConfigError, Denied
from spotwatch.mail.mailbox_client import Fetched, Reader
from spotwatch.mail.mailbox_credentials import complete, open_with_file
from tests.train.s3_stand_in import Call, Reply, S3StandIn, refusal

Write = Callable[..., Path]


def _signer(call: Call) -> str:
    """Return the key that signed a request."""
    headers = {name.lower(): value for name, value in call.headers.items()}
    found = re.search(r"Credential=([^/]+)/", headers.get("authorization", ""))
    return found[1] if found else ""


class _Store(S3StandIn):
    """A store that lets in one key only."""

    def __init__(self, good: str) -> None:
        self.good = good
        super().__init__(self._check)

    def _check(self, call: Call) -> Reply | None:
        return None if _signer(call) == self.good else refusal(403, "InvalidAccessKeyId")

    @property
    def signers(self) -> list[str]:
        """Return who has asked, in turn."""
        return [_signer(call) for call in self.calls]


@pytest.fixture
def store() -> Iterator[_Store]:
    """Give a store with the key OLD."""
    with _Store("OLD") as made:
        yield made


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """Write the file of credentials."""

    def write(**variables: str) -> Path:
        path = tmp_path / "mailbox.env"
        path.touch(mode=0o600)
        path.write_text("".join(f"{name}={value}\n" for name, value in variables.items()))
        return path

    return write


@pytest.fixture
def trainers_environment(store: _Store, monkeypatch: pytest.MonkeyPatch) -> Iterator[_Store]:
    """Let the trainer have a key, a region and an endpoint of its own in the environment."""
    with _Store("TRAINER") as other:
        for name, value in {
            "AWS_ACCESS_KEY_ID": "TRAINER",
            "AWS_SECRET_ACCESS_KEY": "t",
            "AWS_SESSION_TOKEN": "t",
            "AWS_REGION": "us-west-2",
            "AWS_ENDPOINT_URL": other.url,
            "AWS_ENDPOINT_URL_S3": other.url,
        }.items():
            monkeypatch.setenv(name, value)
        yield other


async def _state(reader: Reader) -> str:
    found = (await reader.fetch({"a.json": ""}))["a.json"]
    return found.state if isinstance(found, Fetched) else type(found).__name__


async def test_a_rotated_key_is_used_without_a_restart(store: _Store, write: Write) -> None:
    """The old one is refused, the file has the new one: the same poll reads on with it."""
    spaces = {"SPACES_SECRET": "s", "SPACES_REGION": "nyc3", "SPACES_ENDPOINT": store.url}
    reader = open_with_file("spaces://mail", str(write(SPACES_KEY="OLD", **spaces)), {})
    assert await _state(reader) == "missing"
    store.good = "NEW"
    assert await _state(reader) == "Denied"
    write(SPACES_KEY="NEW", **spaces)
    assert await _state(reader) == "missing"
    assert await _state(reader) == "missing"
    assert store.signers == ["OLD", "OLD", "OLD", "NEW", "NEW"]
    await reader.close()


async def test_a_refusal_says_where_the_key_is(store: _Store, write: Write) -> None:
    """And that what systemd hands over takes a restart; a file that is gone or broken is told beside it."""
    store.good = "NEW"
    spaces = {"SPACES_SECRET": "s", "SPACES_REGION": "nyc3", "SPACES_ENDPOINT": store.url}
    path = write(SPACES_KEY="OLD", **spaces)
    reader = open_with_file("spaces://mail", str(path), {})

    async def refused() -> Denied:
        found = (await reader.fetch({"a.json": ""}))["a.json"]
        assert isinstance(found, Denied)
        return found

    first = await refused()
    assert "mailbox_credentials_file" in first.mend
    assert "LoadCredential" in first.mend
    path.unlink()
    assert "cannot be read" in str(await refused())
    write(SPACES_KEY="NEW")
    assert "SPACES_SECRET" in str(await refused()) or "SPACES_REGION" in str(await refused())
    write(SPACES_KEY="NEW", **spaces)
    assert await _state(reader) == "missing"
    await reader.close()


async def test_the_trainers_key_and_endpoint_are_never_used(
    store: _Store, write: Write, trainers_environment: _Store
) -> None:
    """The file names key and endpoint: whatever else the environment holds, only these are used."""
    file = write(AWS_ACCESS_KEY_ID="OLD", AWS_SECRET_ACCESS_KEY="s", AWS_ENDPOINT_URL=store.url)
    reader = open_with_file("s3://mail", str(file), {})
    assert await _state(reader) == "missing"
    assert (store.signers, trainers_environment.signers) == (["OLD"], [])
    headers = {name.lower(): value for name, value in store.calls[0].headers.items()}
    assert "x-amz-security-token" not in headers
    assert "/us-east-1/s3/" in headers["authorization"]
    await reader.close()


@pytest.mark.parametrize(
    ("region", "endpoint"),
    [
        ("eu-central-1", "https://s3.eu-central-1.amazonaws.com"),
        ("cn-north-1", "https://s3.cn-north-1.amazonaws.com.cn"),
    ],
)
def test_amazons_endpoint_is_said_when_the_file_names_none(region: str, endpoint: str) -> None:
    """Or else the trainer's would be taken from the environment."""
    keys = {"AWS_ACCESS_KEY_ID": "k", "AWS_SECRET_ACCESS_KEY": "s"}
    found = complete("s3://mail", keys | {"AWS_REGION": region})
    assert (found["AWS_ENDPOINT_URL"], found["AWS_REGION"]) == (endpoint, region)


@pytest.mark.parametrize(
    ("url", "names", "says"),
    [
        ("s3://mail", ("SPACES_KEY", "SPACES_SECRET", "AWS_REGION"), "AWS_ACCESS_KEY_ID and AWS_SECRET"),
        (
            "s3://mail",
            ("AWS_ACCESS_KEY", "AWS_SECRET_ACCESS_KEY", "AWS_REGION"),
            "AWS_ACCESS_KEY_ID not",
        ),
        ("s3://mail", ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"), "AWS_REGION"),
        ("spaces://mail", ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"), "SPACES_KEY and SPACES_SECRET"),
        ("spaces://mail", ("SPACES_KEY", "SPACES_SECRET"), "SPACES_REGION"),
    ],
)
def test_half_a_file_is_refused(write: Write, url: str, names: tuple[str, ...], says: str) -> None:
    """What it lacks would be somebody else's; no value is repeated."""
    with pytest.raises(ConfigError, match=says) as caught:
        open_with_file(url, str(write(**dict.fromkeys(names, "confidential"))), {})
    assert "confidential" not in str(caught.value)
