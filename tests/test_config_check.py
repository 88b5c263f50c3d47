# SPDX-License-Identifier: Apache-2.0
"""Which secret files, addresses and owners are accepted.

The checks of plain values are in test_config.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from spotwatch.config_check import parse_listen, resolve_owner
from spotwatch.config_load import load
from spotwatch.config_secrets import read_secret, read_webhook_secrets
from spotwatch.errors import ConfigError
from tests.config_helpers import Loader, find_config


@pytest.fixture
def loader(tmp_path: Path) -> Loader:
    """Give each test its own file."""
    return Loader(tmp_path)


class TestSecrets:
    """Secret files: where they are looked for and which are refused."""

    def secret(self, tmp_path: Path, mode: int = 0o600, text: str = "whsec_abc\n") -> Path:
        """Write a secret file."""
        path = tmp_path / "hook-secret"
        path.write_text(text, encoding="utf-8")
        path.chmod(mode)
        return path

    def test_private_file_is_taken(self, loader: Loader, tmp_path: Path) -> None:
        """A file of mode 0600 is read, stripped."""
        path = self.secret(tmp_path)
        settings = loader(f"[webhook]\nlisten = ':0'\nsecret_files = ['{path}']").settings
        assert read_webhook_secrets(settings.webhook) == ("whsec_abc",)

    def test_value_from_the_environment_is_taken(self, loader: Loader) -> None:
        """A secret by value is meant for the environment."""
        env = {"SPOTWATCH_WEBHOOK__LISTEN": ":0", "SPOTWATCH_WEBHOOK__SECRET": "whsec_env"}
        assert read_webhook_secrets(loader(env=env).settings.webhook) == ("whsec_env",)

    @pytest.mark.parametrize("mode", [0o644, 0o604, 0o620, 0o660])
    def test_file_open_to_others_is_refused(self, mode: int, loader: Loader, tmp_path: Path) -> None:
        """Group and world may not touch a secret."""
        path = self.secret(tmp_path, mode)
        assert "chmod 600" in loader.problems(f"[webhook]\nsecret_files = ['{path}']")

    def test_bare_name_is_a_systemd_credential(self, loader: Loader, tmp_path: Path) -> None:
        """A relative name is looked up in $CREDENTIALS_DIRECTORY, whose ACLs look like group bits."""
        path = self.secret(tmp_path, 0o440)
        settings = loader(
            "[[announce]]\nsecret_file = 'hook-secret'", {"CREDENTIALS_DIRECTORY": str(tmp_path)}
        ).settings
        assert settings.announce[0].secret_file == str(path)

    @pytest.mark.parametrize(
        ("name", "said"),
        [("hook-secret", "LoadCredential="), ("/none/such", "No such file"), ("/etc", "is not a file")],
    )
    def test_unusable_file_is_refused(self, name: str, said: str, loader: Loader) -> None:
        """The message says what is wrong with the file, at its index."""
        text = loader.problems(f"[webhook]\nsecret_files = ['{name}']")
        assert said in text
        assert text.startswith("webhook.secret_files")

    @pytest.mark.parametrize(("body", "said"), [(b" \n", "is empty"), (b"\xff", "is no text")])
    def test_file_without_a_secret_is_refused(self, body: bytes, said: str, tmp_path: Path) -> None:
        """What is read later, or has changed since, is checked again, and never repeated."""
        path = tmp_path / "s"
        path.write_bytes(body)
        with pytest.raises(ConfigError, match=said):
            read_secret(str(path))
        path.unlink()
        with pytest.raises(ConfigError, match="cannot be read: No such file"):
            read_secret(str(path))

    def test_empty_file_is_refused(self, loader: Loader, tmp_path: Path) -> None:
        """An empty secret is none."""
        path = self.secret(tmp_path, text="")
        assert "is empty" in loader.problems(f"[webhook]\nsecret_files = ['{path}']")

    def test_value_in_a_file_open_to_others_is_refused(self, loader: Loader) -> None:
        """A secret inside the configuration file makes that file a secret."""
        loader.path.write_text("[webhook]\nsecret = 'whsec_x'", encoding="utf-8")
        loader.path.chmod(0o644)
        with pytest.raises(ConfigError, match="chmod 600"):
            load(path=loader.path, environ={}, flags={}, provider_configs=find_config)

    def test_bad_url_is_not_repeated(self, loader: Loader) -> None:
        """A receiver's URL holds its token, so the error does not show it."""
        text = loader.problems("[[announce]]\nurl = 'htps://hooks.example/T0K3N'")
        assert "T0K3N" not in text


@pytest.mark.parametrize(
    ("text", "host", "port"),
    [
        ("127.0.0.1:9475", "127.0.0.1", 9475),
        ("[::1]:1", "::1", 1),
        (":0", "", 0),
        ("name-1.x:65535", "name-1.x", 65535),
    ],
)
def test_listen_address(text: str, host: str, port: int) -> None:
    """HOST:PORT, [IPv6]:PORT and :PORT are addresses."""
    listen = parse_listen(text)
    assert listen is not None
    assert (listen.host, listen.port) == (host, port)


def test_empty_listen_address_is_off() -> None:
    """Nothing to listen on is allowed."""
    assert parse_listen("") is None


def test_owner_by_name_and_number() -> None:
    """Names are looked up; numbers that nobody has are taken as they are, with a group."""
    assert resolve_owner("") is None
    assert resolve_owner("root:root") == (0, 0)
    assert resolve_owner("0") == (0, 0)
    assert resolve_owner("4000000:4000001") == (4000000, 4000001)


@pytest.mark.parametrize(
    "text",
    [
        "*@example.com",
        "me*@example.com",
        "?@example.com",
        "me@example.com,you@example.com",
        "a, b@example.com",
        "me me@example.com",
    ],
)
def test_an_address_that_no_mail_has_is_refused(text: str, loader: Loader) -> None:
    """A pattern would match nothing, and make each genuine mail weak."""
    said = loader.problems(f"[mail]\naccount_addresses = ['{text}']")
    assert "is no" in said
    assert "such as me@example.com" in said


def test_an_address_is_taken_in_any_case(loader: Loader) -> None:
    """As it is compared."""
    mail = loader("[mail]\naccount_addresses = ['Me.O\"Neil+tag@Example.com']").settings.mail
    assert mail.account_addresses == ('me.o"neil+tag@example.com',)
