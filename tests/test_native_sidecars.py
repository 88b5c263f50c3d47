# SPDX-License-Identifier: Apache-2.0
"""That each shipped pod says what kind of sidecar it has: what its own SIGTERM means hangs on it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.manifests import daemon_in, environment, pod_of, read

FOLDER = Path(__file__).parents[1] / "deploy/kubernetes"
NAMES = ("job-native", "job-flag", "job-plain", "indexed-job", "jobset")


@pytest.mark.parametrize("name", NAMES)
def test_only_a_native_sidecar_says_that_it_is_one(name: str) -> None:
    """An init container that stays, and no other."""
    daemon = daemon_in(pod_of(read(FOLDER / f"{name}.yaml")))
    is_native = daemon.get("restartPolicy") == "Always"
    assert environment(daemon).get("SPOTWATCH_POD__SIDECAR", "") == ("native" if is_native else "")
