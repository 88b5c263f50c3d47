# SPDX-License-Identifier: Apache-2.0
"""Which way large bodies go, and where to: the choice, and the address that boto3 would take."""

from __future__ import annotations

import importlib.util
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import Any

import pytest

from spotwatch.errors import ConfigError
from spotwatch.train.stores.bulk import choose_bulk
from spotwatch.train.stores.bulk_address import Address, address_of
from spotwatch.train.stores.bulk_obstore import ObstoreBulk
from spotwatch.train.stores.pacing import Pace
from spotwatch.train.stores.s3_bucket import Bucket
from spotwatch.train.stores.uploader import ProcessBulk
from tests.train.bulk_help import use_keys


@pytest.fixture(autouse=True)
def _keys(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    use_keys(monkeypatch, tmp_path)
    monkeypatch.delenv("AWS_CA_BUNDLE", raising=False)


def choose(environ: dict[str, str]) -> type:
    """Return what is chosen."""
    return type(choose_bulk(Bucket("b", {}), Pace(None), environ))


def hide_obstore(patch: pytest.MonkeyPatch) -> None:
    """Have Python find no obstore."""
    found = importlib.util.find_spec

    def find(name: str, *args: Any) -> ModuleSpec | None:
        return None if name == "obstore" else found(name, *args)

    patch.setattr("spotwatch.train.stores.bulk.find_spec", find)


def test_obstore_is_taken_where_it_is_installed_and_a_process_else(monkeypatch: pytest.MonkeyPatch) -> None:
    """By measurement the first is as quick as the link and costs the loop least."""
    assert choose({}) is ObstoreBulk
    assert choose({"SPOTWATCH_UPLOADER": ""}) is ObstoreBulk
    assert choose({"SPOTWATCH_UPLOADER": "boto3"}) is ProcessBulk
    hide_obstore(monkeypatch)
    assert choose({}) is ProcessBulk


def test_a_choice_that_cannot_be_had_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """The message says what there is, and what to install."""
    with pytest.raises(ConfigError, match="SPOTWATCH_UPLOADER='crt': have obstore, boto3"):
        choose({"SPOTWATCH_UPLOADER": "crt"})
    hide_obstore(monkeypatch)
    with pytest.raises(ConfigError, match=r"pip install 'spotwatch\[fast\]'"):
        choose({"SPOTWATCH_UPLOADER": "obstore"})


@pytest.mark.parametrize(
    ("bucket", "options", "endpoint", "is_virtual", "region"),
    [
        ("bucket", {}, "https://bucket.s3.amazonaws.com", True, "us-east-1"),
        (
            "bucket",
            {"region_name": "eu-west-1"},
            "https://bucket.s3.eu-west-1.amazonaws.com",
            True,
            "eu-west-1",
        ),
        ("buc.ket", {"region_name": "eu-west-1"}, "https://s3.eu-west-1.amazonaws.com", False, "eu-west-1"),
        ("bucket", {"endpoint_url": "http://127.0.0.1:99"}, "http://127.0.0.1:99", False, "us-east-1"),
        ("bucket", {"endpoint_url": "http://host:9/s3"}, "http://host:9/s3", False, "us-east-1"),
        (
            "bucket",
            {"endpoint_url": "https://nyc3.digitaloceanspaces.com", "region_name": "nyc3"},
            "https://nyc3.digitaloceanspaces.com",
            False,
            "nyc3",
        ),
    ],
)
def test_the_address_is_the_one_that_boto3_takes(
    bucket: str, options: dict[str, str], endpoint: str, is_virtual: bool, region: str
) -> None:
    """Read off a request that boto3 makes up and never sends."""
    assert address_of(Bucket(bucket, options)) == Address(endpoint, is_virtual, region, None)


def test_an_endpoint_of_the_profile_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever boto3 reads, configuration files too."""
    config = tmp_path / "config"
    config.write_text("[default]\nregion = fra1\nendpoint_url = https://store.example\n", encoding="utf-8")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(config))
    assert address_of(Bucket("bucket", {})) == Address("https://store.example", False, "fra1", None)


def test_certificates_of_ones_own_are_taken_along(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A store behind a company's own authority."""
    bundle = tmp_path / "ca.pem"
    bundle.write_bytes(b"pem")
    monkeypatch.setenv("AWS_CA_BUNDLE", str(bundle))
    address = address_of(Bucket("bucket", {"endpoint_url": "http://127.0.0.1:99"}))
    assert address is not None
    assert address.ca_bundle == b"pem"


@pytest.mark.parametrize(
    "bucket", ["name--use1-az4--x-s3", "arn:aws:s3::123456789012:accesspoint/mfzwi23gnjvgw.mrap"]
)
def test_a_bucket_that_only_boto3_can_reach_has_no_address(bucket: str) -> None:
    """Express buckets want a session, access points of all regions another signature."""
    assert address_of(Bucket(bucket, {"region_name": "us-east-1"})) is None
