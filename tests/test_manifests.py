# SPDX-License-Identifier: Apache-2.0
"""The manifests that people copy: valid for every version, safe, and of one mind with the daemon in them."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from spotwatch.cli import cli
from spotwatch.policy import Policy
from tests.manifests import (
    OLDER,
    PLAIN,
    ROOT,
    Document,
    as_job,
    check_schema,
    containers,
    daemon_in,
    environment,
    is_native,
    outcome,
    pod_of,
    read,
    trainer_in,
)

_FILES = sorted(PLAIN.glob("*.yaml"))
_JOBS = [path for path in _FILES if any(d["kind"] in ("Job", "JobSet") for d in read(path))]
every_file = pytest.mark.parametrize("path", _FILES, ids=[path.stem for path in _FILES])
every_job = pytest.mark.parametrize("path", _JOBS, ids=[path.stem for path in _JOBS])
LOCKED = {
    "allowPrivilegeEscalation": False,
    "readOnlyRootFilesystem": True,
    "capabilities": {"drop": ["ALL"]},
}


@every_file
def test_manifest_fits_the_strict_schemas(path: Path) -> None:
    """A field that a version does not know, or a typing error, would be refused or silently dropped."""
    for document in read(path):
        check_schema(document)


def test_validator_by_its_own_command_agrees() -> None:
    """The command that people would use says the same of what they copy, objects of operators aside."""
    older = [path for path in _JOBS if not any(is_native(document) for document in read(path))]
    for version, paths, name in (("1.29", _JOBS, "job-native"), (OLDER[0], older, "job-plain")):
        command = [sys.executable, "-m", "kubernetes_validate", "--strict", "-k", version, *map(str, paths)]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
        assert done.returncode == 0, done.stdout + done.stderr
        assert f"{name}.yaml passed for resource job/spot-train against version {version}" in done.stdout


def test_schemas_see_a_typing_error() -> None:
    """The test above can fail: one wrong letter in a pod is found."""
    (document,) = [d for d in read(PLAIN / "job-native.yaml") if d["kind"] == "Job"]
    document["spec"]["template"]["spec"]["shareProcessNamespacex"] = True
    with pytest.raises(Exception, match="shareProcessNamespacex"):
        check_schema(document)


@every_job
def test_pod_is_locked_down(path: Path) -> None:
    """Nobody in the pod is root, gains rights, writes to an image, or has a word with the API server."""
    check_locked(pod_of(read(path)))


def check_locked(pod: Document) -> None:
    """Assert what every pod of ours keeps to."""
    context = pod["securityContext"]
    assert context["runAsNonRoot"]
    assert context["runAsUser"] > 0
    assert context["seccompProfile"] == {"type": "RuntimeDefault"}
    assert pod["automountServiceAccountToken"] is False
    assert pod["enableServiceLinks"] is False
    for container in containers(pod):
        assert container["securityContext"] == LOCKED
    assert daemon_in(pod)["resources"].get("limits"), "without a limit a leak would take the trainer's memory"


def test_no_right_is_asked_for() -> None:
    """The service account stays without a role: spotwatch asks the metadata, not the API server."""
    kinds = {document["kind"] for path in _FILES for document in read(path)}
    assert not [kind for kind in kinds if "Role" in kind]


@every_job
def test_probes_restart_only_what_may_be_restarted(path: Path) -> None:
    """A probe never ends the trainer, and liveness asks whether the loop turns, not how the cloud is."""
    check_probes(pod_of(read(path)))


def check_probes(pod: Document) -> None:
    """Assert that probes are on a restartable sidecar alone."""
    for container in containers(pod):
        probes = {name: container[name]["httpGet"]["path"] for name in container if name.endswith("Probe")}
        if container.get("restartPolicy") == "Always":
            assert probes == {
                "startupProbe": "/healthz",
                "livenessProbe": "/healthz",
                "readinessProbe": "/readyz",
            }
        else:
            assert not probes


@every_job
def test_grace_holds_a_save(path: Path) -> None:
    """The pod's last seconds are enough for the save as planned, and spotwatch stays as long."""
    check_grace(pod_of(read(path)))


def check_grace(pod: Document) -> None:
    """Assert that the grace period is long enough, and known to spotwatch."""
    variables = environment(daemon_in(pod))
    policy = Policy()
    save_seconds = float(variables["SPOTWATCH_POLICY__SAVE_SECONDS"])
    needed = save_seconds * policy.safety_factor + policy.stop_margin_seconds
    assert pod["terminationGracePeriodSeconds"] >= needed
    # `exec` waits for its child without a limit; there, these seconds are for a withdrawal after the stop,
    # and would only keep a pod that is done.
    is_exec = daemon_in(pod)["name"] == "trainer"
    stays = None if is_exec else str(pod["terminationGracePeriodSeconds"])
    assert variables.get("SPOTWATCH_POLICY__DRAIN_SECONDS") == stays


@every_job
def test_daemon_takes_its_variables_and_arguments(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not one variable or option in the pod is unknown to the daemon, or refused by it."""
    check_accepted(pod_of(read(path)), monkeypatch)


def check_accepted(pod: Document, monkeypatch: pytest.MonkeyPatch) -> None:
    """Assert that the daemon's container would start with what it is given."""
    daemon = daemon_in(pod)
    for name, value in environment(daemon).items():
        monkeypatch.setenv(name, value)
    arguments = [*daemon["args"]] if daemon["name"] == "spotwatch" else ["exec", "--", "true"]
    done = CliRunner().invoke(cli, [arguments[0], "--print-config", *arguments[1:]])
    assert done.exit_code == 0, done.output
    assert "unknown" not in done.output
    for name in environment(daemon):
        if name.startswith("SPOTWATCH_") and name not in ("SPOTWATCH_CHECKPOINT_URL", "SPOTWATCH_RUN_ID"):
            assert f"environment {name}" in done.output


@every_job
def test_daemon_and_trainer_meet_below_the_root_of_the_volume(path: Path) -> None:
    """Both look into one folder that the daemon makes: the root of an emptyDir is open to everyone."""
    check_meeting(pod_of(read(path)))


def check_meeting(pod: Document) -> None:
    """Assert that daemon and trainer share the runtime directory, and nothing else by accident."""
    places = set()
    for container in (daemon_in(pod), trainer_in(pod)):
        (mount,) = [m["mountPath"] for m in container["volumeMounts"] if m["name"] == "spotwatch-run"]
        place = environment(container)["SPOTWATCH_RUNTIME_DIR"]
        assert Path(place).parent == Path(mount)
        places.add(place)
    assert len(places) == 1
    (volume,) = [v for v in pod["volumes"] if v["name"] == "spotwatch-run"]
    assert volume["emptyDir"]["medium"] == "Memory"
    by_name = {v["name"] for v in pod["volumes"]}
    assert {m["name"] for c in containers(pod) for m in c["volumeMounts"]} <= by_name


_OUTCOMES = [
    (75, False, "Ignore", "FailJob"),
    (76, False, "Count", "Count"),
    (77, False, "FailJob", "FailJob"),
    (77, True, "Ignore", "FailJob"),
    (1, False, "Count", "Count"),
    (137, False, "Count", "Count"),
    (143, True, "Ignore", "FailJob"),
]


@pytest.mark.parametrize(("code", "is_disrupted", "in_job", "in_set"), _OUTCOMES)
@every_job
def test_exit_code_leads_where_it_should(
    path: Path, code: int, in_job: str, in_set: str, *, is_disrupted: bool
) -> None:
    """Reclaims cost no retry, crashes do, and a run that another machine has taken is left to it.

    In a JobSet a failed Job is how the whole set starts again, and its reason whether that is counted.
    """
    (found,) = [d for d in read(path) if d["kind"] in ("Job", "JobSet")]
    wanted = in_set if found["kind"] == "JobSet" else in_job
    assert outcome(as_job(found), code=code, is_disrupted=is_disrupted) == wanted
    # Older versions do not know the field, and do the same by themselves from 1.28 on.
    policy = as_job(found)["spec"].get("podReplacementPolicy")
    assert policy == ("Failed" if is_native(found) else None)
    assert pod_of([found])["restartPolicy"] == "Never"


_MESSAGES = [
    (
        "Container trainer for pod ml/node-0 failed with exit code 77 matching FailJob rule at index 1",
        "FailJobSet",
    ),
    (
        "Container trainer for pod ml/node-0 failed with exit code 75 matching FailJob rule at index 2",
        "RestartJobSetAndIgnoreMaxRestarts",
    ),
    (
        "Pod ml/run-77 has condition DisruptionTarget matching FailJob rule at index 0",
        "RestartJobSetAndIgnoreMaxRestarts",
    ),
]


@pytest.mark.parametrize(("message", "action"), _MESSAGES)
def test_jobset_tells_a_run_that_was_taken_from_a_reclaim(message: str, action: str) -> None:
    """Only the message tells the two apart: a Job's reason is one for both (JobSet, KEP-262)."""
    (found,) = [d for d in read(PLAIN / "jobset.yaml") if d["kind"] == "JobSet"]
    rules = found["spec"]["failurePolicy"]["rules"]
    fits = [
        rule["action"]
        for rule in rules
        if "PodFailurePolicy" in rule["onJobFailureReasons"]
        and any(re.search(pattern, message) for pattern in rule.get("onJobFailureMessagePatterns", [""]))
    ]
    assert fits[0] == action
    assert all("BackoffLimitExceeded" not in rule["onJobFailureReasons"] for rule in rules)


@every_job
def test_process_ids_are_shared_only_for_a_signal(path: Path) -> None:
    """A pod whose trainer is told by files, or as a child, keeps its processes apart."""
    pod = pod_of(read(path))
    takes_signal = "SPOTWATCH_TARGET__0__PROCESS" in environment(daemon_in(pod))
    assert pod.get("shareProcessNamespace", False) is takes_signal


def test_images_are_of_one_name_and_of_this_version() -> None:
    """The image in every manifest is the one that the Dockerfile's page builds."""
    version = re.search(r'^version = "(.+)"$', (ROOT / "pyproject.toml").read_text(), re.MULTILINE)
    assert version
    images: dict[str, set[str]] = {"spotwatch": set(), "trainer": set()}
    for path in _JOBS:
        for container in containers(pod_of(read(path))):
            images[container["name"]].add(container["image"])
    assert images["spotwatch"] == {f"registry.example.com/spotwatch:{version[1]}"}
    assert images["trainer"] == {"registry.example.com/trainer:1"}


@pytest.mark.parametrize("name", ["podmonitor", "networkpolicy"])
@every_job
def test_monitor_and_policy_find_the_pod(name: str, path: Path) -> None:
    """Selector, port and job label of the one fit the labels and the port of the other."""
    (document,) = read(PLAIN / f"{name}.yaml")
    (found,) = [d for d in read(path) if d["kind"] in ("Job", "JobSet")]
    labels = as_job(found)["spec"]["template"]["metadata"]["labels"]
    selector: dict[str, Any] = document["spec"].get("podSelector") or document["spec"]["selector"]
    assert selector["matchLabels"].items() <= labels.items()
    (port,) = daemon_in(pod_of([found]))["ports"]
    if name == "podmonitor":
        assert labels[document["spec"]["jobLabel"]] == "spotwatch"
        assert [e["port"] for e in document["spec"]["podMetricsEndpoints"]] == [port["name"]]
    else:
        assert document["spec"]["ingress"][0]["ports"] == [{"port": port["containerPort"]}]


@pytest.mark.parametrize("name", ["indexed-job", "jobset"])
def test_pods_of_one_run_find_the_first(name: str) -> None:
    """The address that torchrun is given is that of the pod with index 0, in the Service that is there."""
    documents = read(PLAIN / f"{name}.yaml")
    arguments = trainer_in(pod_of(documents))["args"]
    (address,) = [a.partition("=")[2] for a in arguments if a.startswith("--master-addr=")]
    if name == "jobset":
        # The CRD: <jobSet.name>-<spec.replicatedJob.name>-<job-index>-<pod-index>.<subdomain>
        assert address == "spot-train-node-0-0.spot-train"
        assert documents[-1]["spec"]["network"]["enableDNSHostnames"]
        return
    (service,) = [d for d in documents if d["kind"] == "Service"]
    job = as_job(documents[-1])
    assert address == f"{job['metadata']['name']}-0.{service['metadata']['name']}"
    assert job["spec"]["template"]["spec"]["subdomain"] == service["metadata"]["name"]
    assert service["spec"]["selector"].items() <= job["spec"]["template"]["metadata"]["labels"].items()
    assert f"--nnodes={job['spec']['completions']}" in arguments
