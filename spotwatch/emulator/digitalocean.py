# SPDX-License-Identifier: Apache-2.0
"""DigitalOcean: a Droplet's metadata service, which says who it is, and the notice, which is pushed.

Pages follow "Droplet metadata" (docs.digitalocean.com/reference/api/metadata). There is no notice among
them: a relay reads the mail and posts a signed message to the machine. `user-data` and `v1.json` are there
so that a test can see whether anybody reads them. Sending is not done here.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any, ClassVar

from spotwatch.emulator._base import IDENTITY, Asked, Cloud, Hold, Reply
from spotwatch.emulator.faults import Mood
from spotwatch.errors import ConfigError

_ROOT = "/metadata/v1"
NEIGHBOUR_ID = 599999999
NEIGHBOUR_NAME = "somebody-else"
_USER_DATA = "#cloud-config\n# a Droplet's secrets are often kept here\n"


@dataclass(kw_only=True)
class DigitalOcean(Cloud):
    """A Droplet's metadata service."""

    name: ClassVar[str] = "digitalocean"
    signals: ClassVar[tuple[str, ...]] = ("reclaim",)
    pages: ClassVar[tuple[str, ...]] = (IDENTITY, "user-data", "reclaim")

    droplet_id: int = 512345678
    hostname: str = "spot-trainer-01"
    region: str = "atl1"
    tags: tuple[str, ...] = ("spot", "training")
    as_array: bool = False
    """Serve v1.json as the documentation's sample shows it: an array around the object."""
    user_data: str = field(default=_USER_DATA, repr=False)

    @property
    def identity(self) -> str:
        """Return the Droplet's id."""
        return str(self.droplet_id)

    def environment(self, base_url: str) -> dict[str, str]:
        """Return our own variable: DigitalOcean's tools have none."""
        return {"SPOTWATCH_PROVIDER__DIGITALOCEAN__ENDPOINT": base_url}

    def page_of(self, path: str) -> str:
        """Return the page of `path`; v1.json counts as user-data, which it contains."""
        if path in (f"{_ROOT}/user-data", "/metadata/v1.json"):
            return "user-data"
        return IDENTITY if path.startswith("/metadata/") else ""

    def details_of(self, signal: str) -> tuple[str, ...]:
        """Return what `announce` takes."""
        del signal
        return ("droplet_id", "name")

    def error_page(self, status: int) -> Reply:
        """Return a plain page."""
        return Reply(status=status, body=HTTPStatus(status).phrase.lower().encode())

    def answer(self, asked: Asked, mood: Mood, hold: Hold | None = None) -> Reply | Hold:
        """Return one key, an index, or the way to an index."""
        del mood, hold
        if asked.method != "GET":
            return self.error_page(HTTPStatus.METHOD_NOT_ALLOWED)
        if asked.path == "/metadata/v1.json":
            whole = self._whole()
            body = json.dumps([whole] if self.as_array else whole).encode()
            return Reply(body=body, content_type="application/json")
        tree = self._tree()
        key = asked.path.removeprefix(f"{_ROOT}/") if asked.path.startswith(f"{_ROOT}/") else None
        if asked.path == _ROOT or (key is not None and f"{key}/" in tree):
            headers = {"Location": f"{asked.path}/"}
            return Reply(status=HTTPStatus.MOVED_PERMANENTLY, headers=headers)
        if key is None or key not in tree:
            return self.error_page(HTTPStatus.NOT_FOUND)
        return Reply(body=tree[key].encode())

    def message(
        self, event: str, *, at: str | None, droplet_id: int | None, name: str | None, mood: Mood
    ) -> Mapping[str, Any]:
        """Return the pushed JSON; without id and name it concerns this Droplet, by id."""
        if droplet_id is None and name is None:
            droplet_id = self.droplet_id
        if mood.neighbour:
            droplet_id = None if droplet_id is None else NEIGHBOUR_ID
            name = None if name is None else NEIGHBOUR_NAME
        keys = {"event": event, "droplet_id": droplet_id, "name": name, "at": at}
        return {k: v for k, v in keys.items() if v is not None}

    def _tree(self) -> dict[str, str]:
        """Return path -> text; an index ends with a slash."""
        keys = {
            "id": str(self.droplet_id),
            "hostname": self.hostname,
            "user-data": self.user_data,
            "vendor-data": "",
            "public-keys": "",
            "region": self.region,
            "interfaces/public/0/mac": "04:01:2a:0f:2a:01",
            "interfaces/public/0/type": "public",
            "interfaces/public/0/ipv4/address": "203.0.113.7",
            "interfaces/public/0/ipv4/netmask": "255.255.255.0",
            "interfaces/public/0/ipv4/gateway": "203.0.113.1",
            "interfaces/private/0/mac": "04:01:2a:0f:2a:02",
            "interfaces/private/0/type": "private",
            "interfaces/private/0/ipv4/address": "10.132.0.7",
            "dns/nameservers": "67.207.67.2\n67.207.67.3",
            "floating_ip/ipv4/active": "false",
            "reserved_ip/ipv4/active": "false",
            "features/dhcp_enabled": "false",
        }
        index: dict[str, list[str]] = {}
        for key in keys:
            parts = key.split("/")
            for depth, part in enumerate(parts):
                names = index.setdefault("".join(f"{p}/" for p in parts[:depth]), [])
                shown = part if depth == len(parts) - 1 else f"{part}/"
                if shown not in names:
                    names.append(shown)
        index[""].append("tags/")
        return {**keys, **{k: "\n".join(v) for k, v in index.items()}, "tags/": "\n".join(self.tags)}

    def _whole(self) -> dict[str, Any]:
        address = {"ip_address": "203.0.113.7", "netmask": "255.255.255.0", "gateway": "203.0.113.1"}
        return {
            "droplet_id": self.droplet_id,
            "hostname": self.hostname,
            "user_data": self.user_data,
            "vendor_data": "",
            "public_keys": [],
            "region": self.region,
            "interfaces": {"public": [{"ipv4": address, "mac": "04:01:2a:0f:2a:01", "type": "public"}]},
            "dns": {"nameservers": ["67.207.67.2", "67.207.67.3"]},
            "floating_ip": {"ipv4": {"active": False}},
            "reserved_ip": {"ipv4": {"active": False}},
            "tags": list(self.tags),
            "features": {"dhcp_enabled": False},
        }


def decode_secret(secret: str) -> bytes:
    """Return the key in a `whsec_…` secret (Standard Webhooks 1.0.0).

    Raises:
        ConfigError: it is no such secret.
    """
    try:
        key = base64.b64decode(secret.strip().removeprefix("whsec_"), validate=True)
    except (binascii.Error, ValueError):
        key = b""
    if not key:
        raise ConfigError("webhook secret is not base64; give `whsec_` and the base64 of 24 to 64 bytes")
    return key


def sign(key: bytes, message_id: str, timestamp: int, body: bytes) -> dict[str, str]:
    """Return the three headers of Standard Webhooks: HMAC-SHA256 over `id.timestamp.body`."""
    content = b".".join((message_id.encode(), str(timestamp).encode(), body))
    signature = base64.b64encode(hmac.new(key, content, hashlib.sha256).digest()).decode()
    return {
        "webhook-id": message_id,
        "webhook-timestamp": str(timestamp),
        "webhook-signature": f"v1,{signature}",
    }


CLOUD = DigitalOcean
