# SPDX-License-Identifier: Apache-2.0
"""What `--print-config` prints is TOML, says where values come from, shows no secret, and loads again.

What is accepted in the first place is in test_config.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from spotwatch.config_load import Loaded, load
from spotwatch.config_print import digest_settings, print_config
from spotwatch.masking import mask_url


@dataclass(frozen=True, slots=True, kw_only=True)
class CloudConfig:
    """A provider's section with all kinds of values."""

    interval_seconds: float = 1.0
    api_token: str = ""
    token_ttl_seconds: int = 60
    retries: int | None = None
    names: tuple[str, ...] = ()


def reload(tmp_path: Path, toml: str, environ: Mapping[str, str] | None = None) -> Loaded:
    """Load `toml` from a private file."""
    path = tmp_path / "spotwatch.toml"
    path.touch(mode=0o600)
    path.write_text(toml, encoding="utf-8")
    return load(
        path=path,
        environ=environ or {},
        flags={},
        provider_configs=lambda _: CloudConfig,
        is_writable=lambda _: True,
    )


EVERYTHING = """
providers = ["cloud"]
[policy]
ends_at = 2026-11-29T16:00:00Z
[[target]]
process = 'train\\.py "x" \u00e9'
[[target]]
unit = "spot-train.service"
[hook]
on_saved = ["sh", "-c", "echo a, b # c"]
[[announce]]
url = "https://hooks.example.com/services/T0K3N?x=T0K3N"
headers = { Authorization = "Bearer T0K3N", "X-Team" = "ml" }
[webhook]
listen = ":0"
secret = "T0K3N"
[provider.cloud]
api_token = "T0K3N"
"""


def test_secrets_are_masked(tmp_path: Path) -> None:
    """No secret is printed, whether its name or its place gives it away."""
    text = print_config(reload(tmp_path, EVERYTHING))
    assert "T0K3N" not in text
    assert 'secret = "***"' in text
    assert 'url = "https://hooks.example.com/***"' in text
    assert '"X-Team" = "ml"' in text
    assert "token_ttl_seconds = 60" in text


def test_each_value_says_where_it_came_from(tmp_path: Path) -> None:
    """File, environment and default stand behind the value."""
    text = print_config(
        reload(tmp_path, "[policy]\nsave_seconds = 5\n[provider.cloud]", {"SPOTWATCH_LOG__LEVEL": "debug"})
    )
    assert f"save_seconds = 5.0  # file {tmp_path}/spotwatch.toml\n" in text
    assert 'level = "debug"  # environment SPOTWATCH_LOG__LEVEL\n' in text
    assert "safety_factor = 1.5  # default\n" in text
    assert "# retries is not set  # default\n" in text


def test_loads_again_and_means_the_same(tmp_path: Path) -> None:
    """Printing and loading changes nothing but the masked values."""
    first = reload(tmp_path, EVERYTHING)
    text = print_config(first)
    second = reload(tmp_path, text)
    announce = replace(
        first.settings.announce[0],
        url="https://hooks.example.com/***",
        headers={"Authorization": "***", "X-Team": "ml"},
    )
    assert second.settings == replace(
        first.settings,
        announce=(announce,),
        webhook=replace(first.settings.webhook, secret="***"),
        provider={"cloud": CloudConfig(api_token="***")},
    )
    assert print_config(reload(tmp_path, text)).count("# file ") == text.count("# default") + text.count(
        "# file "
    ) - text.count("is not set")


def test_defaults_load_again(tmp_path: Path) -> None:
    """The same for no configuration at all."""
    first = reload(tmp_path, "")
    assert reload(tmp_path, print_config(first)).settings == first.settings


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.text(st.characters(codec="utf-8"), min_size=1).filter(lambda t: "\0" not in t))
def test_any_text_survives(tmp_path: Path, text: str) -> None:
    """Quotes, control characters and every script come back as they went in."""
    first = reload(tmp_path, "")
    loaded = replace(
        first,
        settings=replace(
            first.settings,
            hook=replace(first.settings.hook, on_saved=(text, "x")),
            provider={"cloud": CloudConfig(names=(text,))},
        ),
    )
    printed = print_config(loaded)
    assert tomllib.loads(printed)["hook"]["on_saved"] == [text, "x"]
    assert tomllib.loads(printed)["provider"]["cloud"]["names"] == [text]


def test_a_masked_url_keeps_scheme_and_host_only() -> None:
    """User names, ports, paths and nonsense are handled."""
    assert mask_url("https://u:p@h.example:8443/a?b#c") == "https://h.example:8443/***"
    assert mask_url("http://h/") == "http://h"
    assert mask_url("http://[::1]:80/x") == "http://[::1]:80/***"
    assert mask_url("http://h:99999/x") == "***"
    assert mask_url("nonsense") == "***"


def test_digests_differ_where_settings_do_and_hold_no_secret(tmp_path: Path) -> None:
    """An edited section has another digest, and no other section; comments and secrets do not count."""
    before = digest_settings(reload(tmp_path, EVERYTHING).settings)
    assert before == digest_settings(reload(tmp_path, EVERYTHING + "\n# a comment\n").settings)
    after = digest_settings(reload(tmp_path, EVERYTHING.replace("ends_at = 2026", "ends_at = 2027")).settings)
    assert {name for name in before if before[name] != after[name]} == {"policy"}
    other = digest_settings(reload(tmp_path, EVERYTHING.replace("T0K3N", "S3CR3T")).settings)
    assert other == before
