# SPDX-License-Identifier: Apache-2.0
"""The manifests that people copy, played by podman: orders across containers, and how a pod ends.

A kubelet was not at hand. What it does to a pod (SIGTERM to the trainer, then to the native sidecar, or to
both containers at once) is done by the test.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.manifests import PLAIN, Document, containers, daemon_in, pod_of, read, trainer_in
from tests.real.containers import Podman
from tests.real.namespace import wait_until
from tests.real.pods import Pod, library_trainer, script_trainer

pytestmark = [pytest.mark.real, pytest.mark.timeout(240)]

_HEARD = '"phase":"training"'


def _is_heard(podman: Podman, pod: Pod) -> bool:
    """Tell whether the trainer has written its status: from now on orders by file reach it."""
    command = "cat /run/spotwatch/shared/status/*.json"
    said = podman.exec(pod.daemon, "sh", "-c", command).stdout
    return _HEARD in said.replace(" ", "")


def test_flush_and_stop_by_files_alone_then_the_next_pod_goes_on(
    podman: Podman, image: str, tmp_path: Path
) -> None:
    """Without shared process ids the flag makes it save, and the order makes it leave with 75."""
    trainer = library_trainer()
    with Pod(podman, tmp_path, manifest="job-flag", image=image, trainer=trainer) as pod:
        wait_until(lambda: _is_heard(podman, pod), 60, "a status of the trainer")
        pod.spotwatch("trigger", "flush")
        pod.wait_for('"answer": "durable"')
        assert "checkpoint-now" not in pod.files()
        pod.spotwatch("trigger", "stop")
        assert podman.wait(pod.trainer, 60) == 75
        assert "draining" in pod.files()
        assert pod.order()["do"] == "stop"
        assert "SIGTERM" not in pod.log()
        left_at = pod.trainer_log().partition("left at step ")[2].split()[0]
    with Pod(podman, tmp_path, manifest="job-flag", image=image, trainer=trainer) as pod:
        pod.wait_for_trainer(f"at step {left_at}")


def test_signal_crosses_to_the_trainers_container(podman: Podman, image: str, tmp_path: Path) -> None:
    """With shared process ids a script that knows only flag and SIGTERM saves twice and leaves with 75."""
    with Pod(podman, tmp_path, manifest="job-native", image=image, trainer=script_trainer()) as pod:
        pod.wait_for("watching")
        pod.spotwatch("trigger", "flush")
        pod.wait_for_trainer("flushed")
        pod.spotwatch("trigger", "stop")
        assert podman.wait(pod.trainer, 60) == 75
        pod.wait_for("SIGTERM to pid")
        assert pod.trainer_log().splitlines()[-1] == "saved"
        pod.wait_for('"answer": "acknowledged"')


def test_native_sidecar_leaves_soon_after_the_trainer(podman: Podman, image: str, tmp_path: Path) -> None:
    """As the kubelet ends a pod: the trainer first, then spotwatch, well within its limit."""
    with Pod(podman, tmp_path, manifest="job-native", image=image, trainer=library_trainer()) as pod:
        wait_until(lambda: _is_heard(podman, pod), 60, "a status of the trainer")
        pod.stop(pod.trainer)
        assert podman.wait(pod.trainer, 1) == 75
        assert podman.is_running(pod.daemon)
        # Its 120 s are there for a trainer that still saves; a status counts as fresh for 15 s.
        pod.stop(pod.daemon, seconds=60)
        assert podman.wait(pod.daemon, 1) == 0


def test_plain_sidecar_stays_until_the_trainer_has_saved(podman: Podman, image: str, tmp_path: Path) -> None:
    """Both get SIGTERM at the same time: spotwatch orders the stop and is the last to leave."""
    with Pod(podman, tmp_path, manifest="job-plain", image=image, trainer=script_trainer()) as pod:
        pod.wait_for("watching")
        pod.stop(pod.daemon, pod.trainer)
        assert podman.wait(pod.trainer, 1) == 75
        assert "the pod is being stopped" in pod.log()
        assert pod.trainer_log().splitlines()[-1] == "saved"
        assert pod.ended_at(pod.daemon) > pod.ended_at(pod.trainer)


def test_finished_trainer_ends_the_pod(podman: Podman, image: str, tmp_path: Path) -> None:
    """The plain sidecar leaves with 0 after a run that is done, so that the Job completes."""
    with Pod(podman, tmp_path, manifest="job-plain", image=image, trainer=library_trainer(60)) as pod:
        assert podman.wait(pod.trainer, 60) == 0
        assert podman.wait(pod.daemon, 60) == 0


def test_pod_of_many_nodes_hands_on_the_trainers_code(podman: Podman, image: str, tmp_path: Path) -> None:
    """`spotwatch exec` as the container's first process tells its child, waits, and ends with 75."""
    with Pod(podman, tmp_path, manifest="indexed-job", image=image, trainer=library_trainer()) as pod:
        wait_until(lambda: _is_heard(podman, pod), 60, "a status of the trainer")
        pod.stop(pod.trainer)
        assert podman.wait(pod.trainer, 1) == 75
        assert "left at step" in pod.trainer_log()


def test_pod_of_many_nodes_ends_soon_after_a_notice(podman: Podman, image: str, tmp_path: Path) -> None:
    """After the stop it waits some seconds for a withdrawal, and not as long as a drain may take."""
    with Pod(podman, tmp_path, manifest="indexed-job", image=image, trainer=library_trainer()) as pod:
        wait_until(lambda: _is_heard(podman, pod), 60, "a status of the trainer")
        pod.spotwatch("trigger", "stop")
        assert podman.wait(pod.trainer, 60) == 75


def test_hook_before_the_end_waits_for_the_save(podman: Podman, image: str, tmp_path: Path) -> None:
    """The preStop command of the manifest returns once the trainer has saved and removed the flag."""
    hook = trainer_in(pod_of(read(PLAIN / "job-flag.yaml")))["lifecycle"]["preStop"]["exec"]["command"]
    with Pod(podman, tmp_path, manifest="job-flag", image=image, trainer=library_trainer()) as pod:
        wait_until(lambda: _is_heard(podman, pod), 60, "a status of the trainer")
        done = podman.exec(pod.trainer, *hook)
        assert done.returncode == 0, done.stderr
        assert (pod.data / "spot-train" / "LATEST").exists()


# -- what people get wrong ---------------------------------------------------------------------------------


def _as_user_1000(spec: Document) -> None:
    trainer_in(spec)["securityContext"] |= {"runAsUser": 1000, "runAsGroup": 1000}


def test_trainer_of_another_user_is_named_on_both_sides(podman: Podman, image: str, tmp_path: Path) -> None:
    """Without a shared group neither half works in silence: each says in one line what is wrong."""
    with Pod(
        podman,
        tmp_path,
        manifest="job-native",
        image=image,
        trainer=library_trainer(waits=True),
        change=_as_user_1000,
    ) as pod:
        pod.wait_for("watching")
        pod.wait_for_trainer("/run/spotwatch/shared belongs to uid 65532, gid 65532, neither of them ours")
        assert "uid 1000 has some" in pod.spotwatch("check")
        pod.spotwatch("trigger", "stop")
        pod.wait_for("of uid 65532; uid 1000 has some")
        assert podman.is_running(pod.trainer)


def test_trainer_of_another_user_in_the_same_group_takes_part(
    podman: Podman, image: str, tmp_path: Path
) -> None:
    """With one group and `flag.owner` the user may be another: flag, status and order work as ever."""

    def share(spec: Document) -> None:
        trainer_in(spec)["securityContext"] |= {"runAsUser": 1000, "runAsGroup": 65532}
        daemon_in(spec)["env"].append({"name": "SPOTWATCH_FLAG__OWNER", "value": "1000:65532"})

    with Pod(
        podman, tmp_path, manifest="job-flag", image=image, trainer=library_trainer(), change=share
    ) as pod:
        wait_until(lambda: _is_heard(podman, pod), 60, "a status of the trainer")
        pod.spotwatch("trigger", "flush")
        pod.wait_for('"answer": "durable"')
        assert "checkpoint-now" not in pod.files()
        pod.spotwatch("trigger", "stop")
        assert podman.wait(pod.trainer, 60) == 75


def test_root_of_the_volume_is_refused_as_a_meeting_place(podman: Podman, image: str, tmp_path: Path) -> None:
    """An emptyDir is writable by everyone; the daemon does not start on it, and says what to do."""

    def to_root(spec: Document) -> None:
        for container in containers(spec):
            (row,) = [row for row in container["env"] if row["name"] == "SPOTWATCH_RUNTIME_DIR"]
            row["value"] = "/run/spotwatch"

    with Pod(
        podman, tmp_path, manifest="job-plain", image=image, trainer=library_trainer(), change=to_root
    ) as pod:
        assert podman.wait(pod.daemon, 60) == 2
        assert "/run/spotwatch is writable by everyone" in pod.log()
        pod.wait_for_trainer("/run/spotwatch may be written by everyone")


def test_signal_without_shared_process_ids_falls_back_to_the_flag(
    podman: Podman, image: str, tmp_path: Path
) -> None:
    """A target that is not seen is named, and a stop raises the flag, so that a script saves all the same."""

    def apart(spec: Document) -> None:
        spec["shareProcessNamespace"] = False

    with Pod(
        podman, tmp_path, manifest="job-native", image=image, trainer=script_trainer(), change=apart
    ) as pod:
        pod.wait_for("watching")
        assert "no process matches" in pod.spotwatch("check")
        pod.spotwatch("trigger", "stop")
        pod.wait_for("no process matches")
        pod.wait_for_trainer("flushed")
