# SPDX-License-Identifier: Apache-2.0
"""The chart, rendered by the real helm: what people copy when nothing is set, and sound whatever is set."""

from __future__ import annotations

import re
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.manifests import (
    CHART,
    PLAIN,
    ROOT,
    Document,
    Helm,
    check_schema,
    containers,
    daemon_in,
    environment,
    job_in,
    make_helm,
    outcome,
    pod_of,
    read,
    trainer_in,
)
from tests.test_manifests import check_accepted, check_grace, check_locked, check_meeting, check_probes

pytestmark = pytest.mark.timeout(120)


@pytest.fixture
def helm(tmp_path: Path) -> Helm:
    """Give the real helm; the first time it is unpacked, in a second."""
    return make_helm(tmp_path)


def _torchrun(master: str) -> dict[str, Any]:
    command = ["torchrun", "--nnodes=2", "--nproc-per-node=1", "--node-rank=$(JOB_COMPLETION_INDEX)"]
    return {"command": [*command, f"--master-addr={master}", "--master-port=29500", "train.py"]}


# How each file is said in values.
_SAME: dict[str, dict[str, Any]] = {
    "job-native": {},
    "job-plain": {"sidecar": "plain"},
    "job-flag": {"spotwatch": {"process": ""}, "trainer": {"flagOnStop": True}},
    "indexed-job": {
        "kind": "IndexedJob",
        "sidecar": "exec",
        "trainer": _torchrun("spot-train-0.spot-train"),
    },
    "jobset": {"kind": "JobSet", "sidecar": "exec", "trainer": _torchrun("spot-train-node-0-0.spot-train")},
}


@pytest.mark.parametrize("name", _SAME)
def test_chart_makes_what_people_copy(helm: Helm, name: str) -> None:
    """Manifest and chart are two ways to one pod: neither drifts from the other."""
    rendered = helm.render(_SAME[name])
    assert _by_kind(rendered) == _by_kind(read(PLAIN / f"{name}.yaml"))


def test_every_job_that_people_copy_is_compared() -> None:
    """A new manifest must be said in values too."""
    jobs = {p.stem for p in PLAIN.glob("*.yaml") if any(d["kind"] in ("Job", "JobSet") for d in read(p))}
    assert jobs == set(_SAME)


def _by_kind(documents: list[Document]) -> dict[str, Document]:
    """Return the objects without what only the chart has: its own labels and where images come from."""
    made = {document["kind"]: document for document in documents}
    assert len(made) == len(documents)
    for document in documents:
        for label in ("app.kubernetes.io/version", "app.kubernetes.io/managed-by", "helm.sh/chart"):
            document["metadata"]["labels"].pop(label, None)
        if document["kind"] in ("Job", "JobSet"):
            for container in containers(pod_of([document])):
                container.pop("imagePullPolicy", None)
    return made


_COMBINATIONS = list(
    product(("Job", "IndexedJob", "JobSet"), ("native", "plain", "exec"), ("", "aws", "gcp"))
)


@pytest.mark.parametrize(
    ("kind", "sidecar", "cloud"), _COMBINATIONS, ids=["-".join(filter(None, c)) for c in _COMBINATIONS]
)
def test_every_combination_is_sound(
    helm: Helm, kind: str, sidecar: str, cloud: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever is chosen: valid, locked down, long enough in its grace, and accepted by the daemon."""
    documents = helm.render(
        {
            "kind": kind,
            "sidecar": sidecar,
            "cloud": cloud,
            "podMonitor": {"enabled": True},
            "networkPolicy": {"enabled": True},
        }
    )
    for document in documents:
        check_schema(document)
    pod = pod_of(documents)
    check_locked(pod)
    check_probes(pod)
    check_grace(pod)
    check_meeting(pod)
    check_accepted(pod, monkeypatch)
    assert pod.get("hostNetwork", False) is (cloud == "gcp")
    assert environment(daemon_in(pod))["SPOTWATCH_PROVIDERS"] == (cloud or "auto")


def test_everything_at_once(helm: Helm, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every value that adds something, together, is valid and reaches its place."""
    documents = helm.render(
        {
            "cloud": "digitalocean",
            "image": {"tag": "0.1.0-full", "pullPolicy": "Always"},
            "imagePullSecrets": [{"name": "registry"}],
            "backoffLimit": 0,
            "trainer": {
                "args": ["--epochs=3"],
                "env": [{"name": "NCCL_DEBUG", "value": "INFO"}],
                "envFrom": [{"configMapRef": {"name": "more"}}],
                "volumeMounts": [{"name": "data", "mountPath": "/data"}],
            },
            "spotwatch": {
                "config": "[policy]\nsafety_factor = 2.0\n",
                "secretName": "spotwatch",
                "env": [{"name": "SPOTWATCH_LOG__LEVEL", "value": "debug"}],
                "flagOwner": "1000:2000",
            },
            "mailbox": {
                "url": "spaces://mail/prod",
                "publicKeys": ["whpk_" + "A" * 43 + "="],
                "credentialsFile": "/etc/spotwatch/secrets/mailbox.env",
            },
            "pod": {
                "labels": {"team": "speech"},
                "annotations": {"a": "b"},
                "nodeSelector": {"pool": "spot"},
                "tolerations": [{"key": "spot", "operator": "Exists"}],
                "affinity": {"nodeAffinity": {}},
                "volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": "data"}}],
                "priorityClassName": "batch",
                "runtimeClassName": "nvidia",
                "shmSize": "8Gi",
            },
            "serviceAccount": {"annotations": {"eks.amazonaws.com/role-arn": "arn:aws:iam::1:role/train"}},
            "podMonitor": {"enabled": True, "labels": {"release": "prometheus"}},
            "networkPolicy": {"enabled": True},
        }
    )
    for document in documents:
        check_schema(document)
    pod = pod_of(documents)
    check_grace(pod)
    check_meeting(pod)
    check_accepted(pod, monkeypatch)
    assert pod["terminationGracePeriodSeconds"] == 900
    assert job_in(documents)["spec"]["backoffLimit"] == 0
    assert trainer_in(pod)["args"] == ["--epochs=3"]
    assert pod["nodeSelector"] == {"pool": "spot"}
    (config,) = [d for d in documents if d["kind"] == "ConfigMap"]
    assert config["data"] == {"spotwatch.toml": "[policy]\nsafety_factor = 2.0\n"}
    (secrets,) = [v for v in pod["volumes"] if v["name"] == "spotwatch-secrets"]
    assert secrets["secret"]["secretName"] == "spotwatch"
    assert not [m for m in trainer_in(pod)["volumeMounts"] if m["name"] == "spotwatch-secrets"]


def test_webhook_has_a_service_that_reaches_it(helm: Helm) -> None:
    """A notice that is pushed finds the port of the listener, also while the cloud does not answer."""
    documents = helm.render(
        {
            "webhook": {"enabled": True, "secretFiles": ["/etc/spotwatch/secrets/webhook"]},
            "spotwatch": {"secretName": "spotwatch"},
        }
    )
    for document in documents:
        check_schema(document)
    (service,) = [d for d in documents if d["kind"] == "Service"]
    daemon = daemon_in(pod_of(documents))
    (port,) = [p for p in daemon["ports"] if p["name"] == service["spec"]["ports"][0]["targetPort"]]
    assert environment(daemon)["SPOTWATCH_WEBHOOK__LISTEN"] == f"0.0.0.0:{port['containerPort']}"
    assert service["spec"]["publishNotReadyAddresses"]


def test_rules_of_the_chart_are_prometheus_own(helm: Helm) -> None:
    """The rules in the chart are the very ones that promtool has tested."""
    documents = helm.render({"prometheusRule": {"enabled": True}})
    (rules,) = [d for d in documents if d["kind"] == "PrometheusRule"]
    shipped = yaml.safe_load((ROOT / "deploy/prometheus/spotwatch.rules.yml").read_text(encoding="utf-8"))
    assert rules["spec"]["groups"] == shipped["groups"]


_WEBHOOK = {"enabled": True, "secretFiles": ["/etc/spotwatch/secrets/webhook"]}
_SECRET = {"spotwatch": {"secretName": "spotwatch"}}


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ({"kind": "Deployment"}, "'Job', 'IndexedJob', 'JobSet'"),
        ({"trainr": {}}, "additional properties 'trainr' not allowed"),
        ({"trainer": {"imag": "x"}}, "'imag' not allowed"),
        ({"spotwatch": {"saveSeconds": 100}}, r"120 is less than .* = 165: the last save would be cut off"),
        ({"terminationGracePeriodSeconds": 25}, r"25 is less than .* = 60"),
        ({"checkpoint": {"url": "/data"}}, "/checkpoint/url"),
        ({"spotwatch": {"flagOwner": "trainer"}}, "/spotwatch/flagOwner"),
        ({"webhook": {"enabled": True}}, "opens no listener without a secret"),
        ({"mailbox": {"url": "s3://a/b"}}, "mailbox.url and mailbox.publicKeys belong together"),
        ({"trainer": {"command": []}}, "/trainer/command"),
        ({"cloud": "digitalocean"}, "notice by mail alone: set mailbox.url"),
        ({"webhook": {**_WEBHOOK, "port": 9475}, **_SECRET}, "port of the metrics; take another"),
        ({"webhook": _WEBHOOK}, "spotwatch.secretName names no Secret"),
        ({"backoffLimit": 2147483648}, "/backoffLimit"),
        (
            {"cloud": "aws", "mailbox": {"url": "s3://a/b", "publicKeys": ["whpk_x"]}},
            'are for cloud: digitalocean; cloud is "aws"',
        ),
    ],
)
def test_bad_values_are_refused_with_what_to_do(helm: Helm, values: dict[str, Any], says: str) -> None:
    """Nothing is rendered from values that could not work."""
    done = helm.template(values)
    assert done.returncode != 0
    assert re.search(says, done.stderr), done.stderr


def test_chart_passes_its_own_lint_and_says_what_to_do_next(helm: Helm) -> None:
    """`helm lint` is content, and the notes after an installation name commands for this very release."""
    linted = helm("lint", "--strict", str(CHART))
    assert linted.returncode == 0, linted.stdout
    arguments = ["install", "spot-train", str(CHART), "--dry-run=client", "--namespace=ml", "--set=cloud=gcp"]
    notes = helm(*arguments).stdout.partition("NOTES:")[2]
    assert "kubectl -n ml exec" in notes
    assert "-c spotwatch -- spotwatch check" in notes
    assert "hostNetwork is on" in notes


@pytest.mark.parametrize("sidecar", ["native", "plain", "exec"])
def test_native_sidecar_is_refused_where_there_is_none(helm: Helm, sidecar: str) -> None:
    """Before 1.29 the sidecar would be an init container that never ends, and the trainer never begin."""
    done = helm.template({"sidecar": sidecar}, "--kube-version=1.28.4")
    assert (done.returncode != 0) is (sidecar == "native")
    assert ("set sidecar to plain or exec" in done.stderr) is (sidecar == "native")


def test_exec_form_counts_as_the_job_does(helm: Helm) -> None:
    """The exit code of `spotwatch exec` is the trainer's, so that the same rules hold."""
    job = job_in(helm.render({"sidecar": "exec"}))
    assert outcome(job, code=75) == "Ignore"
    assert [c["name"] for c in containers(job["spec"]["template"]["spec"])] == ["trainer"]


def test_every_value_is_in_the_schema_and_explained() -> None:
    """What can be set is checked, and what is checked can be found in values.yaml."""
    values = yaml.safe_load((CHART / "values.yaml").read_text(encoding="utf-8"))
    schema = yaml.safe_load((CHART / "values.schema.json").read_text(encoding="utf-8"))
    assert set(schema["properties"]) - {"global"} == set(values)
    for name, known in schema["properties"].items():
        if isinstance(values.get(name), dict) and "properties" in known:
            assert set(known["properties"]) == set(values[name]), name


def test_dashboard_of_the_chart_is_the_shipped_one(helm: Helm) -> None:
    """Grafana's sidecar finds the very dashboard whose queries were run against Prometheus."""
    documents = helm.render({"dashboards": {"enabled": True}})
    (found,) = [d for d in documents if d["kind"] == "ConfigMap"]
    check_schema(found)
    assert found["metadata"]["labels"]["grafana_dashboard"] == "1"
    shipped = (ROOT / "deploy/grafana/spotwatch.json").read_text(encoding="utf-8")
    assert yaml.safe_load(found["data"]["spotwatch.json"]) == yaml.safe_load(shipped)
