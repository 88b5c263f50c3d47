# SPDX-License-Identifier: Apache-2.0
"""Names and numbers that YAML or a server would misread, and the nodes of a cloud's spot pool."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.manifests import CHART, Document, Helm, check_schema, job_in, make_helm, pod_of

pytestmark = pytest.mark.timeout(120)
_AKS = "kubernetes.azure.com/scalesetpriority"
_WEBHOOK = {
    "webhook": {"enabled": True, "secretFiles": ["/etc/spotwatch/secrets/webhook"]},
    "spotwatch": {"secretName": "123"},
}


@pytest.fixture
def helm(tmp_path: Path) -> Helm:
    """Give the real helm."""
    return make_helm(tmp_path)


def texts_of(made: object) -> list[object]:
    """Return what is called a name, an instance, a subdomain or an image, anywhere within."""
    if isinstance(made, list):
        return [text for row in made for text in texts_of(row)]
    if not isinstance(made, dict):
        return []
    wanted = ("name", "secretName", "serviceAccountName", "subdomain", "image", "app.kubernetes.io/instance")
    found = [value for key, value in made.items() if key in wanted and not isinstance(value, dict)]
    return found + [text for value in made.values() for text in texts_of(value)]


@pytest.mark.parametrize("release", ["2024", "1e3", "0x1f", "true", "null"])
def test_release_that_yaml_takes_for_a_number_stays_a_name(helm: Helm, release: str) -> None:
    """Whatever the release is called, its name is a text in every place."""
    arguments = [
        f"--set={key}.enabled=true" for key in ("podMonitor", "prometheusRule", "dashboards", "networkPolicy")
    ]
    done = helm("template", release, str(CHART), *arguments, "--set-string=checkpoint.secretName=7")
    assert done.returncode == 0, done.stderr
    documents: list[Document] = [d for d in yaml.safe_load_all(done.stdout) if d]
    assert {d["kind"] for d in documents} >= {"Job", "PodMonitor", "PrometheusRule", "NetworkPolicy"}
    for document in documents:
        assert not [text for text in texts_of(document) if not isinstance(text, str)], document["kind"]
        check_schema(document)


def test_numbers_of_a_file_stay_numbers(helm: Helm) -> None:
    """A file's numbers are floats to helm, which would write 1e+06; a namespace of digits is a text."""
    documents = helm.render(
        {
            "kind": "IndexedJob",
            "backoffLimit": 1_000_000,
            "nodes": 100_000,
            "networkPolicy": {"enabled": True, "monitoringNamespace": "123"},
            **_WEBHOOK,
        }
    )
    for document in documents:
        check_schema(document)
    assert job_in(documents)["spec"]["backoffLimit"] == 1_000_000
    assert job_in(documents)["spec"]["completions"] == 100_000


@pytest.mark.parametrize("release", ["my.run", "7b"])
@pytest.mark.parametrize("values", [{"kind": "IndexedJob"}, {"kind": "JobSet"}, _WEBHOOK])
def test_release_that_cannot_name_a_service_is_refused(
    helm: Helm, tmp_path: Path, release: str, values: dict[str, Any]
) -> None:
    """The server would refuse the Service alone, and the pods would not find each other."""
    file = tmp_path / "values.yaml"
    file.write_text(yaml.safe_dump(values), encoding="utf-8")
    done = helm("template", release, str(CHART), f"--values={file}")
    assert done.returncode != 0
    assert "it has to begin with a letter and to have no dot" in done.stderr
    assert helm("template", release, str(CHART)).returncode == 0


@pytest.mark.parametrize("kind", ["IndexedJob", "JobSet"])
def test_command_that_would_start_one_run_in_each_pod_is_named(helm: Helm, kind: str) -> None:
    """The default command knows nothing of several pods; the notes say so, and are still for torchrun."""
    install = ["install", "spot-train", str(CHART), "--dry-run=client", f"--set=kind={kind}"]
    notes = helm(*install).stdout.partition("NOTES:")[2]
    assert "2 pods run the same command" in notes
    aware = helm(*install, "--set=trainer.args={--node-rank=$(JOB_COMPLETION_INDEX)}").stdout
    assert "NOTES:" in aware
    assert "pods run the same command" not in aware


def test_pod_goes_to_the_spot_nodes_of_aks(helm: Helm) -> None:
    """AKS keeps every pod off its spot nodes that does not tolerate their taint."""
    taint = {"key": _AKS, "operator": "Equal", "value": "spot", "effect": "NoSchedule"}
    documents = helm.render({"cloud": "azure"})
    check_schema(documents[-1])
    assert pod_of(documents)["tolerations"] == [taint]
    assert pod_of(documents)["nodeSelector"] == {_AKS: "spot"}
    own = {"key": "gpu", "operator": "Exists"}
    pod = pod_of(helm.render({"cloud": "azure", "pod": {"nodeSelector": {"a": "b"}, "tolerations": [own]}}))
    assert pod["tolerations"] == [own, taint]
    assert pod["nodeSelector"] == {"a": "b"}
    assert "tolerations" not in pod_of(helm.render({"cloud": "gcp"}))


def test_null_takes_a_default_away(helm: Helm) -> None:
    """Helm removes what is set to null, and the chart still renders."""
    nulls = {"kind": "IndexedJob", "pod": {"tolerations": None}, "trainer": {"args": None}}
    documents = helm.render(nulls | {"spotwatch": {"config": None, "env": None}})
    assert "tolerations" not in pod_of(documents)
    assert [document["kind"] for document in documents].count("ConfigMap") == 0
