# SPDX-License-Identifier: Apache-2.0
"""A loader of configuration that sees nothing of this machine, and two providers that are none.

The tests that use it are in test_config and its neighbours.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from spotwatch.config_load import Loaded, load
from spotwatch.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class CloudConfig:
    """A provider's section, as providers write them."""

    interval_seconds: float = 1.0
    endpoint: str = ""
    ipv6: bool = False
    ttl: int = 10
    names: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.ttl > 100:
            raise ValueError(f"ttl {self.ttl} is over 100; the service refuses it")


def find_config(name: str) -> type:
    """Know two providers."""
    if name not in {"cloud", "other"}:
        raise ConfigError(f"unknown provider {name!r}; have cloud, other")
    return CloudConfig


class Loader:
    """Loads with a scratch file and nothing of this machine."""

    def __init__(self, tmp_path: Path) -> None:
        self.path = tmp_path / "spotwatch.toml"
        self.tmp_path = tmp_path

    def __call__(
        self,
        toml: str | None = None,
        env: Mapping[str, str] | None = None,
        flags: Mapping[str, object] | None = None,
        **more: Any,
    ) -> Loaded:
        """Return what `load` makes of these layers."""
        if toml is not None:
            self.path.write_text(toml, encoding="utf-8")
            self.path.chmod(0o600)
        return load(
            path=self.path if toml is not None else None,
            environ=env or {},
            flags=flags or {},
            provider_configs=more.pop("provider_configs", find_config),
            default_path=self.tmp_path / "absent.toml",
            is_writable=lambda _: True,
            **more,
        )

    def problems(self, *args: Any, **more: Any) -> str:
        """Return why `load` refuses these layers."""
        with pytest.raises(ConfigError) as caught:
            self(*args, **more)
        return str(caught.value)
