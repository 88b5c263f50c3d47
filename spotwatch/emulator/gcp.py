# SPDX-License-Identifier: Apache-2.0
"""Google Compute Engine's metadata server: preemption, maintenance, and requests that wait for a change.

Shapes follow "About VM metadata", the guest agent's and google-cloud-go's clients, and the API's
UpcomingMaintenance. `preempted` carries no time, so the faults about time touch `upcoming-maintenance` and
Date only; `duplicate` gives an unchanged value a new ETag each second.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from http import HTTPStatus
from typing import Any, ClassVar

from spotwatch.emulator._base import IDENTITY, Asked, Cloud, Hold, Reply
from spotwatch.emulator.faults import Mood

_ROOT = "/computeMetadata/v1"
_DETAILS: Mapping[str, tuple[str, ...]] = {
    "preempted": ("value",),
    "maintenance-event": ("value",),
    "upcoming-maintenance": ("status", "kind", "camel_case", "value"),
}
# GKE's own metadata server shows pods nothing else of instance/.
_GKE_KEYS = ("attributes", "hostname", "id", "service-accounts", "zone")
NONE_YET = {"error": "no notifications have been received yet, try again later"}
_HEADERS = {
    "Metadata-Flavor": "Google",
    "Server": "Metadata Server for VM",
    "X-XSS-Protection": "0",
    "X-Frame-Options": "SAMEORIGIN",
}

Tree = dict[str, Any]


@dataclass(kw_only=True)
class Gcp(Cloud):
    """A Compute Engine VM's metadata server."""

    name: ClassVar[str] = "gcp"
    signals: ClassVar[tuple[str, ...]] = tuple(_DETAILS)
    pages: ClassVar[tuple[str, ...]] = (*_DETAILS, IDENTITY)

    instance_id: int = 4520031799277581759
    hostname: str = "spot-1.us-central1-a.c.example.internal"
    zone: str = "projects/123456789012/zones/us-central1-a"
    on_host_maintenance: str = "TERMINATE"
    gke: bool = False
    """Play GKE's metadata server, which hides `preempted` and all other signals."""
    no_maintenance: Any = None
    """What `upcoming-maintenance` shows when there is none: an error object unless given (`NONE`, `{}`)."""

    @property
    def identity(self) -> str:
        """Return the instance's numeric id."""
        return str(self.instance_id)

    def environment(self, base_url: str) -> dict[str, str]:
        """Return the variable of Google's own clients: a host, no scheme."""
        return {"GCE_METADATA_HOST": base_url.removeprefix("http://")}

    def page_of(self, path: str) -> str:
        """Return the page of `path`."""
        key = path.removeprefix(f"{_ROOT}/instance/").rstrip("/")
        return key if key in _DETAILS else IDENTITY if path.startswith("/") else ""

    def details_of(self, signal: str) -> tuple[str, ...]:
        """Return what `announce` takes; `value` replaces the key's value as it is."""
        return _DETAILS[signal]

    def error_page(self, status: int) -> Reply:
        """Return a short page in Google's manner."""
        phrase = HTTPStatus(status).phrase
        body = f"<!DOCTYPE html>\n<html lang=en>\n<title>Error {status} ({phrase})!!1</title>\n"
        return Reply(status=status, body=body.encode(), content_type="text/html", headers=_HEADERS)

    def answer(self, asked: Asked, mood: Mood, hold: Hold | None = None) -> Reply | Hold:
        """Return a value or a directory, at once or when it has changed."""
        if asked.path == "/":
            return Reply(body=b"computeMetadata/\n", content_type="application/text", headers=_HEADERS)
        if asked.method != "GET":
            return self.error_page(HTTPStatus.METHOD_NOT_ALLOWED)
        if asked.headers.get("metadata-flavor") != "Google":
            return self.error_page(HTTPStatus.FORBIDDEN)
        found = _find(self._tree(mood), asked.path)
        if found is None:
            return self.error_page(HTTPStatus.NOT_FOUND)
        if _is_directory(found) and not asked.path.endswith("/"):
            headers = {**_HEADERS, "Location": f"{asked.path}/"}
            return Reply(status=HTTPStatus.MOVED_PERMANENTLY, content_type="text/html", headers=headers)
        return self._now_or_later(found, asked, mood, hold)

    def _now_or_later(self, found: Any, asked: Asked, mood: Mood, hold: Hold | None) -> Reply | Hold:
        """Return the value, or a hold while it is the one that the client knows already."""
        body, content_type = _render(found, asked.query)
        etag = self._etag(asked.path, body, mood)
        if _truth(asked.query.get("wait_for_change")) and not (hold is not None and hold.expired):
            known = hold.etag if hold is not None else asked.query.get("last_etag", etag)
            if known == etag:
                return hold or Hold(seconds=_seconds(asked.query.get("timeout_sec")), etag=etag)
        return Reply(body=body, content_type=content_type, headers={**_HEADERS, "ETag": etag})

    def _etag(self, path: str, body: bytes, mood: Mood) -> str:
        """Return sixteen hexadecimal digits that change with the value, or each second under `duplicate`."""
        salt = str(int(self.clock.now().timestamp())) if mood.duplicate else ""
        return hashlib.sha256(b"\0".join((path.encode(), body, salt.encode()))).hexdigest()[:16]

    def _tree(self, mood: Mood) -> Tree:
        """Return everything below `computeMetadata/v1/`."""
        instance: Tree = {
            "attributes": {},
            "hostname": self.hostname,
            "id": self.instance_id,
            "machine-type": "projects/123456789012/machineTypes/a2-highgpu-1g",
            "maintenance-event": self._value(
                "maintenance-event", mood, "NONE", "TERMINATE_ON_HOST_MAINTENANCE"
            ),
            "name": self.hostname.split(".")[0],
            "preempted": self._value("preempted", mood, "FALSE", "TRUE"),
            "scheduling": {
                "automatic-restart": "FALSE",
                "on-host-maintenance": self.on_host_maintenance,
                "preemptible": "TRUE",
            },
            "service-accounts": {},
            "upcoming-maintenance": _Leaf(self._upcoming(mood)),
            "zone": self.zone,
        }
        if self.gke:
            instance = {k: v for k, v in instance.items() if k in _GKE_KEYS}
        project = {"numeric-project-id": 123456789012, "project-id": "example"}
        return {"instance": instance, "project": project}

    def _value(self, signal: str, mood: Mood, idle: str, told: str) -> str:
        notice = self.in_force(signal, mood)
        return idle if notice is None else str(notice.details.get("value", told))

    def _upcoming(self, mood: Mood) -> Any:
        notice = self.in_force("upcoming-maintenance", mood)
        if notice is None:
            return NONE_YET if self.no_maintenance is None else self.no_maintenance
        if "value" in notice.details:
            return notice.details["value"]
        begins = notice.deadline(mood, self.clock.now())
        keys = {
            "can_reschedule": False,
            "latest_window_start_time": _rfc3339(begins, 0),
            "maintenance_reasons": ["SCHEDULED_INFRASTRUCTURE_UPDATE"],
            "maintenance_status": str(notice.details.get("status", "PENDING")),
            "type": str(notice.details.get("kind", "SCHEDULED")),
            "window_end_time": _rfc3339(begins, 4 * 3600),
            "window_start_time": _rfc3339(begins, 0),
        }
        return {_camel(k): v for k, v in keys.items()} if notice.details.get("camel_case") else keys


@dataclass(frozen=True, slots=True)
class _Leaf:
    """A key whose value is JSON by itself, and no directory."""

    value: Any


def _find(tree: Tree, path: str) -> Any:
    """Return the subtree or value at `path`; None when there is none."""
    if path.rstrip("/") == _ROOT:
        return tree
    if not path.startswith(f"{_ROOT}/"):
        return None
    node: Any = tree
    for part in path.removeprefix(f"{_ROOT}/").rstrip("/").split("/"):
        if not _is_directory(node) or part not in node:
            return None
        node = node[part]
    return node


def _is_directory(node: Any) -> bool:
    return isinstance(node, dict)


def _render(node: Any, query: Mapping[str, str]) -> tuple[bytes, str]:
    """Return body and content type of a value, a listing or a whole subtree."""
    alt, recursive = query.get("alt"), _truth(query.get("recursive"))
    if isinstance(node, _Leaf):
        as_json = not isinstance(node.value, str)
        text = json.dumps(node.value) if as_json else node.value
    elif _is_directory(node) and not recursive:
        as_json = False
        text = "".join(f"{k}/\n" if _is_directory(v) else f"{k}\n" for k, v in node.items())
    elif _is_directory(node) and alt == "text":
        as_json = False
        text = "".join(f"{k} {v}\n" for k, v in _flat("", node))
    else:
        as_json = alt == "json" or (recursive and alt != "text")
        text = json.dumps(_json(node)) if as_json else str(node)
    return text.encode(), "application/json" if as_json else "application/text"


def _json(node: Any) -> Any:
    """Return a subtree as `alt=json` shows it: names in camel case."""
    if isinstance(node, _Leaf):
        return node.value
    if isinstance(node, dict):
        return {_camel(k): _json(v) for k, v in node.items()}
    return node


def _flat(prefix: str, node: Any) -> list[tuple[str, str]]:
    if isinstance(node, _Leaf):
        return [(prefix, node.value if isinstance(node.value, str) else json.dumps(node.value))]
    if isinstance(node, dict):
        return [row for k, v in node.items() for row in _flat(f"{prefix}/{k}" if prefix else k, v)]
    return [(prefix, str(node))]


def _camel(name: str) -> str:
    first, *rest = name.replace("_", "-").split("-")
    return first + "".join(word.capitalize() for word in rest)


def _truth(text: str | None) -> bool:
    return (text or "").lower() == "true"


def _seconds(text: str | None) -> float | None:
    return float(text) if text and text.isascii() and text.isdigit() else None


def _rfc3339(moment: datetime, after_seconds: float) -> str:
    return (moment + timedelta(seconds=after_seconds)).strftime("%Y-%m-%dT%H:%M:%SZ")


CLOUD = Gcp
