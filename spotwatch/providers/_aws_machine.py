# SPDX-License-Identifier: Apache-2.0
"""What is set for the AWS provider, what AWS's own variables add, and whether this machine is EC2's.

It opens no connection.

Sources: botocore's names for the environment (`botocore/configprovider.py`); Amazon EC2 user guide, "Identify
EC2 instances" and "Use the Instance Metadata Service to access instance metadata".
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from spotwatch.errors import ConfigError

IPV4_ENDPOINT = "http://169.254.169.254"
IPV6_ENDPOINT = "http://[fd00:ec2::254]"
_MAX_TTL_SECONDS = 21600


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """Settings of the section `provider.aws`."""

    interval_seconds: float = 1.0
    """Between polls of instance-action."""
    timeout_seconds: float = 1.0
    """For one poll, a token and a retry included."""
    endpoint: str = ""
    """Empty: `AWS_EC2_METADATA_SERVICE_ENDPOINT`, else the link-local address of IPv4 or IPv6."""
    ipv6: bool = False
    """Use `[fd00:ec2::254]`; also by `AWS_EC2_METADATA_SERVICE_ENDPOINT_MODE=IPv6`."""
    allow_imdsv1: bool = False
    """Go on without a token where none is to be had; `AWS_EC2_METADATA_V1_DISABLED=true` forbids it."""
    token_ttl_seconds: int = _MAX_TTL_SECONDS

    def __post_init__(self) -> None:
        """Refuse values that cannot work.

        Raises:
            ValueError: says which, and what is wanted.
        """
        if self.endpoint and not _is_url(self.endpoint):
            raise ValueError(f"endpoint {self.endpoint!r} is no URL; write http://HOST or http://HOST:PORT")
        for name, value, low, high in (
            ("interval_seconds", self.interval_seconds, 0.05, 60),
            ("timeout_seconds", self.timeout_seconds, 0.05, 10),
            ("token_ttl_seconds", self.token_ttl_seconds, 1, _MAX_TTL_SECONDS),
        ):
            if not low <= value <= high:
                raise ValueError(f"{name} {value:g} is out of range; use {low:g} to {high:g}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Environment:
    """What the variables of AWS's own tools say, and whether we are in a container."""

    is_disabled: bool = False
    endpoint: str = ""
    ipv6: bool = False
    is_v1_disabled: bool = False
    is_container: bool = False


def read_environment(variables: Mapping[str, str], *, root: Path = Path("/")) -> Environment:
    """Return what `variables` and the marker files of container engines say.

    Args:
        variables: the environment of the process.
        root: where `.dockerenv` and `run/.containerenv` would be.
    """
    markers = (root / ".dockerenv", root / "run" / ".containerenv")
    return Environment(
        is_disabled=_is_true(variables.get("AWS_EC2_METADATA_DISABLED")),
        endpoint=variables.get("AWS_EC2_METADATA_SERVICE_ENDPOINT", "").strip(),
        ipv6=variables.get("AWS_EC2_METADATA_SERVICE_ENDPOINT_MODE", "").strip().lower() == "ipv6"
        or _is_true(variables.get("AWS_IMDS_USE_IPV6")),
        is_v1_disabled=_is_true(variables.get("AWS_EC2_METADATA_V1_DISABLED")),
        is_container="KUBERNETES_SERVICE_HOST" in variables or any(marker.exists() for marker in markers),
    )


def _is_true(text: str | None) -> bool:
    return (text or "").strip().lower() == "true"


def is_ec2(read_dmi: Callable[[str], str]) -> bool:
    """Tell from the machine's DMI texts whether it is an EC2 instance.

    Nitro and bare metal name their vendor; Xen instances have a BIOS of Amazon's or a uuid that begins with
    ec2. One uuid in 4096 does so by chance, so it counts on Xen only.
    """
    vendor = read_dmi("sys_vendor")
    if vendor == "Amazon EC2" or re.fullmatch(r"i-[0-9a-f]{8,17}", read_dmi("board_asset_tag")):
        return True
    has_amazon_bios = read_dmi("bios_version").lower().endswith("amazon")
    return vendor == "Xen" and (has_amazon_bios or read_dmi("product_uuid").lower().startswith("ec2"))


def endpoint_of(config: Config, environment: Environment) -> str:
    """Return the base URL to ask.

    Raises:
        ConfigError: the variable is no http URL.
    """
    if config.endpoint:
        return config.endpoint
    if environment.endpoint:
        if not _is_url(environment.endpoint):
            name = "AWS_EC2_METADATA_SERVICE_ENDPOINT"
            raise ConfigError(
                f"{name}: {environment.endpoint!r} is no URL; write http://HOST or http://HOST:PORT"
            )
        return environment.endpoint
    return IPV6_ENDPOINT if config.ipv6 or environment.ipv6 else IPV4_ENDPOINT


def _is_url(text: str) -> bool:
    try:
        parts = urlsplit(text)
        return parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        return False
