# SPDX-License-Identifier: Apache-2.0
"""That docs/kubernetes.md says what is there: its command runs as printed, its table and values are true."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import yaml

from tests.manifests import (
    OLDER,
    PLAIN,
    ROOT,
    VERSIONS,
    daemon_in,
    environment,
    make_helm,
    pod_of,
    trainer_in,
)

_PAGE = (ROOT / "docs" / "kubernetes.md").read_text(encoding="utf-8")


def _blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", _PAGE, re.DOTALL)


def test_command_of_the_page_renders_the_chart(tmp_path: Path) -> None:
    """What a newcomer copies first works, and his words arrive in the pod."""
    (block,) = _blocks("bash")
    name, *arguments = shlex.split(block.replace("\\\n", " "))
    assert name == "helm"
    chart = arguments.index("deploy/helm/spotwatch")
    arguments[chart] = str(ROOT / arguments[chart])
    done = make_helm(tmp_path)(*arguments)
    assert done.returncode == 0, done.stderr
    pod = pod_of(list(yaml.safe_load_all(done.stdout)))
    assert trainer_in(pod)["image"] == "my-registry/trainer:7"
    assert environment(trainer_in(pod))["SPOTWATCH_CHECKPOINT_URL"] == "s3://my-bucket/checkpoints"
    assert environment(daemon_in(pod))["SPOTWATCH_PROVIDERS"] == "aws"


def test_values_of_the_page_make_the_pod_of_two_users(tmp_path: Path) -> None:
    """Another user in the same group, told by files: as it was played for real (tests/real/test_pod.py)."""
    (block,) = _blocks("yaml")
    pod = pod_of(make_helm(tmp_path).render(yaml.safe_load(block)))
    assert trainer_in(pod)["securityContext"]["runAsUser"] == 1000
    assert pod["securityContext"]["runAsGroup"] == 65532
    assert environment(daemon_in(pod))["SPOTWATCH_FLAG__OWNER"] == "1000:65532"
    assert "shareProcessNamespace" not in pod


def test_page_sends_pods_to_the_spot_nodes_that_the_chart_does(tmp_path: Path) -> None:
    """What a manifest is to be given by hand for AKS is what the chart gives."""
    (block,) = re.findall(r"```\n( +tolerations:\n.*?)```", _PAGE, re.DOTALL)
    pod = pod_of(make_helm(tmp_path).render({"cloud": "azure"}))
    assert yaml.safe_load(block) == {key: pod[key] for key in ("tolerations", "nodeSelector")}


def test_page_names_every_manifest_and_no_other() -> None:
    """Nobody looks for a file that is not there, and none is there that nobody is told of."""
    named = set(re.findall(r"`([a-z-]+\.yaml)`", _PAGE))
    assert named == {path.name for path in PLAIN.glob("*.yaml")}


def test_page_claims_the_versions_that_are_tested() -> None:
    """The limits say what was seen, and no more."""
    words = " ".join(_PAGE.split())
    assert (
        f"Kubernetes {VERSIONS[0]} to {VERSIONS[-1]}, those without a native sidecar from {OLDER[0]}" in words
    )
    assert f"clusters from {OLDER[0]} to {OLDER[-1]}" in words
