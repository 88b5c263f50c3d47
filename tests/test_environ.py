# SPDX-License-Identifier: Apache-2.0
"""What of our environment trainers and hooks may see."""

from __future__ import annotations

import pytest

from spotwatch.environ import without_secrets


@pytest.mark.parametrize(
    "name",
    [
        "SPOTWATCH_WEBHOOK__SECRET",
        "SPOTWATCH_WEBHOOK__SECRET_FILES",
        "SPOTWATCH_ANNOUNCE__0__URL",
        "SPOTWATCH_ANNOUNCE__0__HEADERS",
        "spotwatch_webhook__secret",
        "SPOTWATCH_PROVIDER__MAIL__PASSWORD",
        "SPOTWATCH_PROVIDER__X__API_KEY",
        "NOTIFY_SOCKET",
        "WATCHDOG_USEC",
        "LISTEN_FDS",
    ],
)
def test_our_secrets_and_our_line_to_systemd_are_kept(name: str) -> None:
    """A hook could print the one, and speak in our name on the other."""
    assert without_secrets({name: "x", "PATH": "/bin"}) == {"PATH": "/bin"}


@pytest.mark.parametrize(
    "name",
    [
        "SPOTWATCH_RUNTIME_DIR",
        "SPOTWATCH_CHECKPOINT_URL",
        "SPOTWATCH_RUN_ID",
        "SPOTWATCH_ALLOW_FRESH",
        "AWS_SECRET_ACCESS_KEY",
        "SPACES_KEY",
        "CREDENTIALS_DIRECTORY",
    ],
)
def test_what_a_trainer_needs_is_handed_on(name: str) -> None:
    """Its own credentials, and what the library reads."""
    assert without_secrets({name: "x"}) == {name: "x"}
