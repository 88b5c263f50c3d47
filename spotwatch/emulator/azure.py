# SPDX-License-Identifier: Apache-2.0
"""Azure's instance metadata service: Scheduled Events with approval, and the machine's own description.

Shapes follow "Azure Metadata Service: Scheduled Events for Linux VMs" and its table of versions; 2024-07-09
is the preview with rebalance recommendations. An event is Scheduled until its NotBefore or an approval, then
Started, then gone. It plays one machine's view: a neighbour is a name in `Resources`.
"""

from __future__ import annotations

import json
import uuid
from dataclasses import dataclass, field
from datetime import datetime
from http import HTTPStatus
from typing import Any, ClassVar

from spotwatch.emulator._base import IDENTITY, Announced, Asked, Cloud, Hold, Reply
from spotwatch.emulator.faults import Mood

EVENTS = "scheduled-events"
_EVENTS_PATH = "/metadata/scheduledevents"
PREVIEW = "2024-07-09"
VERSIONS = ("2017-08-01", "2017-11-01", "2019-01-01", "2019-04-01", "2019-08-01", "2020-07-01", PREVIEW)
_INSTANCE_VERSIONS = ("2017-08-01", "2019-06-01", "2020-06-01", "2021-02-01", "2023-07-01", *VERSIONS)
# The version in which a type or a key first appears (the page's table of versions).
_TYPE_SINCE = {"Preempt": "2017-11-01", "Terminate": "2019-01-01", "SpotRebalanceRecommendation": PREVIEW}
_KEY_SINCE = {"Description": "2019-04-01", "EventSource": "2019-08-01", "DurationInSeconds": "2020-07-01"}
_DURATION_SECONDS = {"Freeze": 5, "Reboot": 600, "Redeploy": 900}
_DESCRIPTIONS = {
    "Freeze": "Host server is undergoing maintenance.",
    "Preempt": "Spot virtual machine is being evicted.",
    "Terminate": "Virtual machine is being deleted.",
}
_DETAILS = (
    "resources",
    "event_id",
    "status",
    "not_before",
    "description",
    "source",
    "duration_seconds",
    "started_seconds",
)
NEIGHBOUR = "spot-vmss_7"
_JSON = "application/json; charset=utf-8"


@dataclass(kw_only=True)
class Azure(Cloud):
    """An Azure VM's metadata service."""

    name: ClassVar[str] = "azure"
    signals: ClassVar[tuple[str, ...]] = (
        "Preempt",
        "Terminate",
        "Reboot",
        "Redeploy",
        "Freeze",
        "SpotRebalanceRecommendation",
    )
    pages: ClassVar[tuple[str, ...]] = (EVENTS, IDENTITY)

    compute_name: str = "spot-vmss_0"
    """The name in `Resources`, which on a scale set is not the hostname."""
    vm_id: str = "02aab8a4-74ef-476e-8182-f6d2ba4166a6"
    first_call_seconds: float = 0.0
    """How long the first request for events takes; up to two minutes on a real machine."""
    preview: bool = True
    """Serve 2024-07-09; without it that version is 404."""
    approved: list[str] = field(default_factory=list, init=False)
    """EventIds of all StartRequests, in order."""
    _started: dict[str, datetime] = field(default_factory=dict, init=False)
    _incarnation: int = field(default=1, init=False)
    _shown: str = field(default="[]", init=False)
    """The events of the last document, to tell whether there is something new."""
    _was_asked: bool = field(default=False, init=False)

    @property
    def identity(self) -> str:
        """Return the VM's unique id, which is not what `Resources` names."""
        return self.vm_id

    def environment(self, base_url: str) -> dict[str, str]:
        """Return our own variable: Azure's tools have none."""
        return {"SPOTWATCH_PROVIDER__AZURE__ENDPOINT": base_url}

    def page_of(self, path: str) -> str:
        """Return the page of `path`."""
        return EVENTS if path == _EVENTS_PATH else IDENTITY if path.startswith("/metadata/instance") else ""

    def tells(self, page: str) -> bool:
        """Tell whether `page` is that of the events."""
        return page == EVENTS

    def page_for_fault(self, signal: str) -> str:
        """Return the page; every event type is on the same one."""
        return EVENTS if signal in self.signals else super().page_for_fault(signal)

    def details_of(self, signal: str) -> tuple[str, ...]:
        """Return what `announce` takes; `not_before` is put in as it is."""
        del signal
        return _DETAILS

    def replaces(self, new: Announced, old: Announced) -> bool:
        """Tell whether both are one event."""
        return new.id == old.id

    def new_id(self, signal: str) -> str:
        """Return a GUID in capitals."""
        del signal
        return str(uuid.uuid4()).upper()

    def error_page(self, status: int) -> Reply:
        """Return Azure's JSON error."""
        return _json({"error": HTTPStatus(status).phrase}, status=status)

    def answer(self, asked: Asked, mood: Mood, hold: Hold | None = None) -> Reply | Hold:
        """Return the document, the description, or the result of an approval."""
        if asked.headers.get("metadata", "").lower() != "true":
            return _bad("Bad request. Required metadata header not specified")
        page = self.page_of(asked.path)
        if asked.method != "GET" and not (asked.method == "POST" and page == EVENTS):
            return self.error_page(HTTPStatus.METHOD_NOT_ALLOWED)
        if page == EVENTS:
            return self._events(asked, mood, hold)
        if page == IDENTITY:
            return self._instance(asked)
        return self.error_page(HTTPStatus.NOT_FOUND)

    def _events(self, asked: Asked, mood: Mood, hold: Hold | None) -> Reply | Hold:
        version = asked.query.get("api-version", "")
        if version == PREVIEW and not self.preview:
            return self.error_page(HTTPStatus.NOT_FOUND)
        if version not in VERSIONS:
            return _bad(
                f"Bad request. api-version is invalid or was not specified in the request: {version!r}"
            )
        if hold is not None and not hold.expired:
            return hold
        if not self._was_asked:
            self._was_asked = True
            if self.first_call_seconds > 0:
                return Hold(seconds=self.first_call_seconds, etag="")
        if asked.method == "POST":
            return self._approve(asked.body)
        return self._document(version, mood)

    def _document(self, version: str, mood: Mood) -> Reply:
        """Return the events as `version` shows them; the incarnation is that of the newest version's."""
        now = self.clock.now()
        notices = () if mood.hidden else self.notices
        shown = json.dumps([self._event(n, PREVIEW, mood, now) for n in notices])
        if shown != self._shown:
            self._shown = shown
            self._incarnation += 1
        events = [e for n in notices for e in self._event(n, version, mood, now)]
        return _json({"DocumentIncarnation": self._incarnation, "Events": events})

    def _event(self, notice: Announced, version: str, mood: Mood, now: datetime) -> list[dict[str, Any]]:
        """Return one event as `version` shows it: once, twice when duplicated, not at all when over."""
        if version < _TYPE_SINCE.get(notice.signal, ""):
            return []
        told = notice.details
        deadline = notice.deadline(mood, now)
        started_at = self._started.get(notice.id)
        # What is told may slide or be wrong; the event itself keeps to the true time.
        is_due = now >= notice.deadline(Mood(), now)
        if started_at is None and (told.get("status") == "Started" or is_due):
            started_at = self._started[notice.id] = now
        lasts = float(told.get("started_seconds", 60.0))
        if started_at is not None and (now - started_at).total_seconds() >= lasts:
            return []
        event = {
            "EventId": notice.id,
            "EventStatus": "Scheduled" if started_at is None else "Started",
            "EventType": notice.signal,
            "ResourceType": "VirtualMachine",
            "Resources": [NEIGHBOUR] if mood.neighbour else list(told.get("resources", [self.compute_name])),
            "NotBefore": told.get("not_before", "" if started_at else _rfc1123(deadline)),
            "Description": told.get("description", _DESCRIPTIONS.get(notice.signal, "")),
            "EventSource": told.get("source", "Platform"),
            "DurationInSeconds": told.get("duration_seconds", _DURATION_SECONDS.get(notice.signal, -1)),
        }
        event = {k: v for k, v in event.items() if version >= _KEY_SINCE.get(k, "")}
        return [event] * (1 + mood.duplicate)

    def _approve(self, body: bytes) -> Reply:
        """Start the events named; approving one twice is as good as once, naming none is malformed."""
        try:
            ids = [str(request["EventId"]) for request in json.loads(body)["StartRequests"]]
        except (ValueError, KeyError, TypeError, RecursionError):
            return _bad("Bad request. Malformed StartRequests")
        known = {n.id.lower(): n for n in self.notices}
        if not ids or any(i.lower() not in known for i in ids):
            return _bad("Bad request. No such EventId")
        self.approved += ids
        for event_id in ids:
            notice = known[event_id.lower()]
            # A rebalance recommendation is advice: approving it changes nothing.
            if notice.signal != "SpotRebalanceRecommendation":
                self._started.setdefault(notice.id, self.clock.now())
        return Reply(content_type=_JSON)

    def _instance(self, asked: Asked) -> Reply:
        if asked.query.get("api-version", "") not in _INSTANCE_VERSIONS:
            return _bad("Bad request. api-version is invalid or was not specified in the request")
        compute = {
            "azEnvironment": "AzurePublicCloud",
            "evictionPolicy": "Delete",
            "location": "westus3",
            "name": self.compute_name,
            "osProfile": {"computerName": self.compute_name.replace("_", "00000")},
            "osType": "Linux",
            "priority": "Spot",
            "resourceGroupName": "training",
            "tags": "",
            "vmId": self.vm_id,
            "vmScaleSetName": self.compute_name.partition("_")[0] if "_" in self.compute_name else "",
            "vmSize": "Standard_ND96asr_v4",
        }
        rest = asked.path.removeprefix("/metadata/instance").strip("/")
        if asked.query.get("format") == "text" and rest.startswith("compute/"):
            value = compute.get(rest.removeprefix("compute/"))
            if isinstance(value, str):
                return Reply(body=value.encode(), content_type="text/plain; charset=utf-8")
        elif rest in ("", "compute"):
            return _json(compute if rest else {"compute": compute, "network": {"interface": []}})
        return self.error_page(HTTPStatus.NOT_FOUND)


def _json(value: Any, status: int = HTTPStatus.OK) -> Reply:
    return Reply(status=status, body=json.dumps(value).encode(), content_type=_JSON)


def _bad(why: str) -> Reply:
    return _json({"error": why, "newest-versions": list(reversed(VERSIONS))[:3]}, HTTPStatus.BAD_REQUEST)


def _rfc1123(moment: datetime) -> str:
    """Return `Mon, 11 Apr 2026 22:26:58 GMT`; the C locale is that of Python's own start."""
    return moment.strftime("%a, %d %b %Y %H:%M:%S GMT")


CLOUD = Azure
