# SPDX-License-Identifier: Apache-2.0
"""How each cloud is played on a raw server: where its signals are, and what a calm and a stormy answer is.

It decides nothing about providers; what differs from the rule for good reasons is named per cloud.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from spotwatch.clock import Clock
from spotwatch.errors import ProviderError, Unavailable
from spotwatch.providers import Context, Provider, load
from tests.providers import imds
from tests.providers.aws_payloads import served
from tests.providers.raw_server import FAULTS, Behaviour, RawServer, body, status

Outcome = type[ProviderError] | Literal["none", "unasked"]
"""What a poll says of a signal: its error, `none` in force, or nothing at all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cloud:
    """One pull provider and its service."""

    name: str
    paths: Mapping[str, str]
    identity_path: str
    calm: Mapping[str, Behaviour]
    """All routes of a machine without notices."""
    storm: Mapping[str, Behaviour]
    """By signal, an answer with one notice."""
    settings: Mapping[str, Any]
    exceptions: Mapping[tuple[str, str], Outcome] = field(default_factory=dict)
    """By signal and fault, where the cloud documents something else."""

    def server(self) -> RawServer:
        """Return the service, nothing being in force."""
        return RawServer(dict(self.calm))

    def provider(self, url: str, clock: Clock) -> Provider:
        """Return the provider in front of it."""
        made = load(self.name)
        context = Context(clock=clock, runtime_dir=Path("/nonexistent"))
        return made(made.config_class(endpoint=url, **self.settings), context)

    def expected(self, signal: str, fault: str) -> Outcome:
        """Return what a poll must say of `signal` under `fault`."""
        rule: Outcome = "none" if fault == "404" else FAULTS[fault].error
        return self.exceptions.get((signal, fault), rule)


AWS = Cloud(
    name="aws",
    paths=imds.PATHS,
    identity_path=imds.INSTANCE_ID,
    calm={f"PUT {imds.TOKEN_PATH}": body("token"), imds.INSTANCE_ID: body("i-0123456789abcdef0")},
    storm={
        "instance-action": body(served("instance-action-terminate")),
        "termination-time": body(served("termination-time")),
        "rebalance": body(served("rebalance")),
        "asg": body("Terminated"),
        "scheduled-events": body(served("events-reboot")),
    },
    settings={"timeout_seconds": 0.5},
)


def _google(text: str) -> Behaviour:
    return body(text, headers={"Metadata-Flavor": "Google", "ETag": "1"})


_GCP_ROOT = "/computeMetadata/v1/instance"
_UPCOMING = {
    "type": "SCHEDULED",
    "maintenance_status": "PENDING",
    "can_reschedule": "false",
    "window_start_time": "2026-12-01T19:00:01Z",
    "window_end_time": "2026-12-01T21:00:01Z",
    "latest_window_start_time": "2026-12-01T19:00:01Z",
}
GCP = Cloud(
    name="gcp",
    paths={
        signal: f"{_GCP_ROOT}/{signal}"
        for signal in ("preempted", "maintenance-event", "upcoming-maintenance")
    },
    identity_path=f"{_GCP_ROOT}/id",
    calm={
        f"{_GCP_ROOT}/preempted": _google("FALSE"),
        f"{_GCP_ROOT}/maintenance-event": _google("NONE"),
        f"{_GCP_ROOT}/upcoming-maintenance": _google("NONE"),
        f"{_GCP_ROOT}/id": _google("4711"),
    },
    storm={
        "preempted": _google("TRUE"),
        "maintenance-event": _google("TERMINATE_ON_HOST_MAINTENANCE"),
        "upcoming-maintenance": _google(json.dumps(_UPCOMING)),
    },
    settings={"timeout_seconds": 0.5},
    exceptions={
        # Hidden by GKE: never "not preempted".
        ("preempted", "404"): Unavailable,
        # Many machines have no such key, and nothing is wrong with them.
        ("maintenance-event", "404"): "unasked",
        ("upcoming-maintenance", "404"): "unasked",
        ("upcoming-maintenance", "503"): "unasked",
    },
)

_AZURE_EVENTS = "/metadata/scheduledevents"
_AZURE_COMPUTE = "/metadata/instance/compute"
_PREEMPT = {
    "EventId": "602d9444-d2cd-49c7-8624-8643e7171297",
    "EventType": "Preempt",
    "ResourceType": "VirtualMachine",
    "Resources": ["trainer_0"],
    "EventStatus": "Scheduled",
    "NotBefore": "Sun, 29 Nov 2026 12:00:30 GMT",
    "Description": "",
    "EventSource": "Platform",
    "DurationInSeconds": -1,
}
AZURE = Cloud(
    name="azure",
    paths={"scheduled-events": _AZURE_EVENTS},
    identity_path=_AZURE_COMPUTE,
    calm={
        _AZURE_EVENTS: body('{"DocumentIncarnation": 1, "Events": []}'),
        _AZURE_COMPUTE: body('{"name": "trainer_0", "vmId": "02aab8a4-74ef-476e-8182-f6d2ba4166a6"}'),
    },
    storm={"scheduled-events": body(json.dumps({"DocumentIncarnation": 2, "Events": [_PREEMPT]}))},
    settings={"timeout_seconds": 0.5, "first_timeout_seconds": 0.5},
    # Every Azure machine has this endpoint; where it is not, an answer is to be waited for.
    exceptions={("scheduled-events", "404"): Unavailable},
)

CLOUDS = {cloud.name: cloud for cloud in (AWS, GCP, AZURE)}
NOT_FOUND = status(404)
