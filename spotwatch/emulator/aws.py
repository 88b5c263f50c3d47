# SPDX-License-Identifier: Apache-2.0
"""Amazon EC2's instance metadata service: IMDSv2, spot notices, scheduled events, target lifecycle state.

Shapes follow the EC2 user guide (spot-instance-termination-notices, rebalance-recommendations,
monitoring-instances-status-check_sched, instancedata-data-retrieval). No list of events is 200 with `[]`:
agents that take 404 there for an error run well on real machines. It plays no hop limit and no throttle;
put `hang` on `token`, or `429` on anything.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from http import HTTPStatus
from typing import Any, ClassVar

from spotwatch.emulator._base import IDENTITY, Announced, Asked, Cloud, Hold, Reply
from spotwatch.emulator.faults import Mood

TTL_HEADER = "x-aws-ec2-metadata-token-ttl-seconds"
TOKEN_HEADER = "x-aws-ec2-metadata-token"  # noqa: S105 - the name of a header
MAX_TTL_SECONDS = 21600
TOKEN_PATH = "/latest/api/token"  # noqa: S105 - a path
_META = "/latest/meta-data"
_DOCUMENT = "/latest/dynamic/instance-identity/document"
_PAGES = {
    TOKEN_PATH: "token",
    f"{_META}/spot/instance-action": "instance-action",
    f"{_META}/spot/termination-time": "termination-time",
    f"{_META}/events/recommendations/rebalance": "rebalance",
    f"{_META}/events/maintenance/scheduled": "scheduled-events",
    f"{_META}/events/maintenance/history": "history",
    f"{_META}/autoscaling/target-lifecycle-state": "asg",
}
_DETAILS = {
    "instance-action": ("action", "body"),
    "rebalance": ("body",),
    "asg": ("state",),
    "scheduled-events": ("code", "description", "event_id", "not_after_seconds", "body"),
    "termination-time": ("body",),
}
_ERROR_PAGE = """<?xml version="1.0" encoding="iso-8859-1"?>
<!DOCTYPE html PUBLIC "-//W3C//DTD XHTML 1.0 Transitional//EN"
	"http://www.w3.org/TR/xhtml1/DTD/xhtml1-transitional.dtd">
<html xmlns="http://www.w3.org/1999/xhtml" xml:lang="en" lang="en">
 <head>
  <title>{title}</title>
 </head>
 <body>
  <h1>{title}</h1>
 </body>
</html>
"""


@dataclass(kw_only=True)
class Aws(Cloud):
    """An EC2 instance's metadata service."""

    name: ClassVar[str] = "aws"
    signals: ClassVar[tuple[str, ...]] = tuple(_DETAILS)
    pages: ClassVar[tuple[str, ...]] = (*_PAGES.values(), IDENTITY)
    closes: ClassVar[bool] = True

    instance_id: str = "i-0123456789abcdef0"
    life_cycle: str = "spot"
    imdsv1: bool = False
    """Answer without a token too."""
    asg_state: str | None = None
    """What an Auto Scaling group's instance shows; None: 404, it is in no group."""
    _tokens: dict[str, float] = field(default_factory=dict, init=False)
    """Token -> the monotonic moment of its end. Older ones stay valid until their own end."""
    _history: list[dict[str, str]] = field(default_factory=list, init=False)

    @property
    def identity(self) -> str:
        """Return the instance id."""
        return self.instance_id

    def environment(self, base_url: str) -> dict[str, str]:
        """Return botocore's variable."""
        return {"AWS_EC2_METADATA_SERVICE_ENDPOINT": base_url}

    def page_of(self, path: str) -> str:
        """Return the page of `path`."""
        return _PAGES.get(path) or (IDENTITY if path.startswith("/latest/") else "")

    def details_of(self, signal: str) -> tuple[str, ...]:
        """Return what `announce` takes; `body` replaces the page as it is."""
        return _DETAILS[signal]

    def replaces(self, new: Announced, old: Announced) -> bool:
        """Tell whether `new` takes the place of `old`; scheduled events do by id."""
        return new.signal == old.signal and (new.signal != "scheduled-events" or new.id == old.id)

    def new_id(self, signal: str) -> str:
        """Return an id in EC2's form."""
        return f"instance-event-{secrets.token_hex(8)}0" if signal == "scheduled-events" else signal

    def withdraw(self, signal: str | None) -> tuple[Announced, ...]:
        """Take notices back; scheduled events go into the history as canceled."""
        gone = super().withdraw(signal)
        for notice in gone:
            if notice.signal == "scheduled-events" and "body" not in notice.details:
                item = _scheduled(notice, Mood(), self.clock.now())
                item |= {"State": "canceled", "Description": f"[Canceled] {item['Description']}"}
                self._history.append(item)
            elif notice.signal == "asg":
                self.asg_state = "InService"
        return gone

    def expire(self) -> None:
        """End every token."""
        self._tokens.clear()

    def error_page(self, status: int) -> Reply:
        """Return EC2's XHTML page."""
        title = f"{status} - {HTTPStatus(status).phrase}"
        body = _ERROR_PAGE.format(title=title).encode()
        return Reply(status=status, body=body, content_type="text/html", headers={"Server": "EC2ws"})

    def answer(self, asked: Asked, mood: Mood, hold: Hold | None = None) -> Reply | Hold:
        """Return a token, a page, or the reason why not."""
        del hold
        if asked.method == "PUT":
            return self._new_token(asked)
        if asked.method != "GET" or asked.path == TOKEN_PATH:
            return self.error_page(HTTPStatus.METHOD_NOT_ALLOWED)
        headers = {"Server": "EC2ws"}
        token = asked.headers.get(TOKEN_HEADER)
        if token is not None or not self.imdsv1:
            left = self._tokens.get(token or "", 0.0) - self.clock.monotonic()
            if left <= 0:
                return self.error_page(HTTPStatus.UNAUTHORIZED)
            headers["X-aws-ec2-metadata-token-ttl-seconds"] = str(int(left))
        page = self._page(asked.path, mood)
        if page is None:
            return self.error_page(HTTPStatus.NOT_FOUND)
        kind = "application/json" if page[:1] in "{[" else "text/plain"
        return Reply(body=page.encode(), content_type=kind, headers=headers)

    def _new_token(self, asked: Asked) -> Reply:
        if asked.path != TOKEN_PATH:
            return self.error_page(HTTPStatus.FORBIDDEN)
        ttl = asked.headers.get(TTL_HEADER, "")
        if not (ttl.isascii() and ttl.isdigit() and 1 <= int(ttl[:6]) <= MAX_TTL_SECONDS and len(ttl) < 6):  # noqa: PLR2004 - digits of 21600
            return self.error_page(HTTPStatus.BAD_REQUEST)
        now = self.clock.monotonic()
        self._tokens = {t: end for t, end in self._tokens.items() if end > now}
        token = f"AQAEA{secrets.token_urlsafe(37)}=="
        self._tokens[token] = now + int(ttl)
        headers = {"Server": "EC2ws", "X-aws-ec2-metadata-token-ttl-seconds": ttl}
        return Reply(body=token.encode(), headers=headers)

    def _page(self, path: str, mood: Mood) -> str | None:
        """Return the text of `path`; None: 404."""
        now = self.clock.now()
        match _PAGES.get(path):
            case None:
                page = self._identity_page(path)
            case "scheduled-events":
                page = self._scheduled_page(mood, now)
            case "history":
                page = _dump(self._history)
            case "termination-time":
                page = self._termination_time(mood, now)
            case "asg":
                notice = self.in_force("asg", mood)
                page = self.asg_state if notice is None else str(notice.details.get("state", "Terminated"))
            case signal:
                page = self._object_page(signal, mood, now)
        return page

    def _object_page(self, signal: str, mood: Mood, now: datetime) -> str | None:
        notice = self.in_force(signal, mood)
        if notice is None:
            return None
        if "body" in notice.details:
            return str(notice.details["body"])
        return _object(_pairs(notice, mood, now), twice=mood.duplicate)

    def _termination_time(self, mood: Mood, now: datetime) -> str | None:
        """Return the legacy page, there only for terminate; or whatever was announced for it."""
        own = self.in_force("termination-time", mood)
        if own is not None and "body" in own.details:
            return str(own.details["body"])
        notice = own or self.in_force("instance-action", mood)
        if (
            notice is None
            or notice.details.get("action", "terminate") != "terminate"
            or "body" in notice.details
        ):
            return None
        return _z(notice.deadline(mood, now))

    def _scheduled_page(self, mood: Mood, now: datetime) -> str:
        notices = [n for n in self.notices if n.signal == "scheduled-events"]
        if mood.hidden or mood.neighbour:
            notices = []
        for notice in notices:
            if "body" in notice.details:
                return str(notice.details["body"])
        items = [_scheduled(n, mood, now) for n in notices for _ in range(1 + mood.duplicate)]
        return _dump(items)

    def _identity_page(self, path: str) -> str | None:
        if path == _DOCUMENT:
            return json.dumps(self._document(), indent=2)
        keys = {
            "ami-id": "ami-0abcdef1234567890",
            "instance-id": self.instance_id,
            "instance-life-cycle": self.life_cycle,
            "instance-type": "p4d.24xlarge",
            "local-hostname": "ip-10-0-0-7.ec2.internal",
            "local-ipv4": "10.0.0.7",
            "placement/availability-zone": "us-east-1a",
            "placement/region": "us-east-1",
        }
        key = path.removeprefix(f"{_META}/")
        if key in keys:
            return keys[key]
        if path in (_META, f"{_META}/"):
            names = {k.split("/")[0] + "/" * ("/" in k) for k in (*keys, "events/")}
            return "\n".join(sorted(names))
        return None

    def _document(self) -> Mapping[str, Any]:
        return {
            "accountId": "123456789012",
            "architecture": "x86_64",
            "availabilityZone": "us-east-1a",
            "billingProducts": None,
            "devpayProductCodes": None,
            "marketplaceProductCodes": None,
            "imageId": "ami-0abcdef1234567890",
            "instanceId": self.instance_id,
            "instanceType": "p4d.24xlarge",
            "kernelId": None,
            "pendingTime": "2026-11-01T08:00:00Z",
            "privateIp": "10.0.0.7",
            "ramdiskId": None,
            "region": "us-east-1",
            "version": "2017-09-30",
        }


def _pairs(notice: Announced, mood: Mood, now: datetime) -> list[tuple[str, str]]:
    """Return the keys of an instance-action or a rebalance recommendation."""
    if notice.signal == "rebalance":
        emitted = notice.deadline(mood, now) if mood.past or mood.sliding else notice.at
        return [("noticeTime", _z(emitted))]
    action = str(notice.details.get("action", "terminate"))
    # Hibernation "begins immediately": there are no two minutes.
    moment = notice.deadline(mood, now)
    if action == "hibernate" and not (mood.past or mood.sliding):
        moment = notice.at + timedelta(seconds=mood.skew_seconds)
    return [("action", action), ("time", _z(moment))]


def _scheduled(notice: Announced, mood: Mood, now: datetime) -> dict[str, str]:
    code = str(notice.details.get("code", "instance-retirement"))
    begins = notice.deadline(mood, now)
    item = {
        "NotBefore": _unpadded(begins),
        "Code": code,
        "Description": str(notice.details.get("description", f"scheduled {code.rpartition('-')[2]}")),
        "EventId": notice.id,
        "State": "active",
    }
    after = notice.details.get("not_after_seconds", 7200)
    if after is not None:
        item["NotAfter"] = _unpadded(begins + timedelta(seconds=float(after)))
    return item


def _object(pairs: list[tuple[str, str]], *, twice: bool) -> str:
    """Return a JSON object as EC2 writes it; `twice` says every key again, which JSON allows."""
    return "{" + ", ".join(f'"{k}": "{v}"' for _ in range(1 + twice) for k, v in pairs) + "}"


def _dump(items: list[dict[str, str]]) -> str:
    return json.dumps(items, indent=1) if items else "[]"


def _z(moment: datetime) -> str:
    return moment.strftime("%Y-%m-%dT%H:%M:%SZ")


def _unpadded(moment: datetime) -> str:
    """Return `21 Jan 2019 09:00:43 GMT`; the day has no leading zero."""
    return f"{moment.day} {moment:%b %Y %H:%M:%S} GMT"


CLOUD = Aws
