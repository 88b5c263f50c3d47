# SPDX-License-Identifier: Apache-2.0
"""What each setting must be beyond its type, and what to write instead.

Every check raises ValueError with a message without the path; `config_types` puts them together. The only
things looked at outside are the user database and secret files.
"""

from __future__ import annotations

import grp
import ipaddress
import pwd
import re
import signal
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from spotwatch.config import Announce, Flag, Http, Mail, Relay, RelayDroplet, TargetSettings, Webhook
from spotwatch.config_secrets import locate_secret
from spotwatch.config_types import Refine, closest
from spotwatch.handshake import DRAINING, NOTICES_DIR, ORDER, STATUS_DIR
from spotwatch.masking import mask_url
from spotwatch.model import from_rfc3339
from spotwatch.policy import Policy

LOCK = "daemon.lock"
"""In the runtime directory; held by the daemon as long as it lives."""
MAX_SAFETY_FACTOR = 100.0
"""A save that took a hundred times as long as the worst of the last ones is no longer a matter of margins."""
OCCASIONS = ("notice", "saved", "missed", "withdrawn", "survived")
_RESERVED = frozenset({DRAINING, NOTICES_DIR, ORDER, STATUS_DIR, LOCK})
# systemd.unit(5): a unit's name, and no leading dash, which systemctl would take for an option.
_UNIT = re.compile(r"[A-Za-z0-9:_.\\@][A-Za-z0-9:_.\\@-]*")
_DOMAIN = re.compile(r"(?:[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?\.)+[a-z0-9-]{2,63}")
# None is a pattern; and a display name, or several addresses in one text, would be compared with one address.
_NOT_IN_ADDRESSES = re.compile(r"[*?<>,;()\s]")
_MAILBOX_SCHEMES = ("s3", "spaces", "file")
_NEVER_SENT = ("SIGKILL", "SIGSTOP")


def field_checks(environ: Mapping[str, str]) -> dict[type, dict[str, Refine]]:
    """Return, for each section, the checks of single fields."""

    def secret_file(name: str) -> str:
        return locate_secret(name, environ) if name else name

    return {
        Policy: {"ends_at": _moment, "safety_factor": _factor},
        Flag: {"path": _flag_path, "owner": _owner},
        TargetSettings: {
            "unit": _unit,
            "pidfile": _absolute,
            "process": _regex,
            "user": _user,
            "signal": _signal,
        },
        Announce: {"url": _url, "on": _occasions, "secret_file": secret_file},
        Http: {"listen": _listen},
        Mail: {
            "trusted_domains": lambda names: tuple(_domain(name) for name in names),
            "account_addresses": lambda texts: tuple(_mail_address(text) for text in texts),
            "patterns_file": _absolute,
            "resolvers": lambda texts: tuple(_resolver(text) for text in texts),
        },
        Relay: {"mailbox": _mailbox, "key_file": secret_file, "token_file": secret_file, "api_url": _url},
        RelayDroplet: {"id": _droplet_id, "addresses": lambda texts: tuple(_ip_address(t) for t in texts)},
        Webhook: {
            "listen": _listen,
            "trusted_proxies": lambda texts: tuple(_ip_address(text) for text in texts),
            "secret_files": lambda names: tuple(secret_file(name) for name in names),
        },
    }


def whole_checks(*, has_child: bool) -> dict[type, Callable[[Any], None]]:
    """Return, for each section, the check of all its fields together.

    Args:
        has_child: one target may name nothing: it is the child that `exec` starts.
    """

    def target(target: TargetSettings) -> None:
        named = [n for n in ("unit", "pidfile", "process") if getattr(target, n)]
        if len(named) > 1:
            raise ValueError(f"has {' and '.join(named)}; keep one, and write a [[target]] for each other")
        if not named and not has_child:
            raise ValueError("names no trainer; set one of unit, pidfile, process")

    return {TargetSettings: target, Announce: _announce}


@dataclass(frozen=True, slots=True, kw_only=True)
class Listen:
    """An address to listen on."""

    host: str
    """Empty: every address of this machine."""
    port: int
    """0: any free one."""


def parse_listen(text: str) -> Listen | None:
    """Return the address in `127.0.0.1:9475`, `[::1]:9475` or `:9475`; None for an empty text: off.

    Raises:
        ValueError: it is none.
    """
    if not text:
        return None
    host, colon, port = text.rpartition(":")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host:
        raise ValueError(f"{text!r}: an IPv6 address goes in brackets, as in [::1]:9475")
    if not colon or not re.fullmatch(r"[0-9]{1,5}", port) or int(port) > 65535:  # noqa: PLR2004 - the last port
        raise ValueError(f"{text!r} is no address; write HOST:PORT, as in 127.0.0.1:9475")
    if not re.fullmatch(r"[A-Za-z0-9_.:%-]*", host):
        raise ValueError(f"{text!r} has no host that one can listen on")
    return Listen(host=host, port=int(port))


def resolve_owner(text: str) -> tuple[int, int] | None:
    """Return uid and gid of `uid:gid`, `user:group` or `user` (with its own group); None for an empty text.

    Raises:
        ValueError: there is no such user or group.
    """
    if not text:
        return None
    user, colon, group = text.partition(":")
    try:
        entry = pwd.getpwuid(int(user)) if _is_number(user) else pwd.getpwnam(user)
        uid, gid = entry.pw_uid, entry.pw_gid
    except KeyError:
        if not _is_number(user):
            raise ValueError(f"there is no user {user!r}") from None
        if not colon:
            raise ValueError(f"uid {user} has no entry that names its group; write {user}:GID") from None
        uid, gid = int(user), -1  # containers run as numbers that no file knows
    if colon:
        try:
            gid = int(group) if _is_number(group) else grp.getgrnam(group).gr_gid
        except KeyError:
            raise ValueError(f"there is no group {group!r}") from None
    return uid, gid


def _is_number(text: str) -> bool:
    return re.fullmatch(r"[0-9]{1,10}", text) is not None


def _owner(text: str) -> str:
    resolve_owner(text)
    return text


def _user(text: str) -> str:
    resolve_owner(f"{text}:0" if text else "")
    return text


def _moment(text: str) -> str:
    if text:
        try:
            from_rfc3339(text)
        except ValueError as error:
            hint = "" if "zone" in str(error) else f"{text!r} is no time: "
            raise ValueError(f"{hint}{error}; write it as 2026-11-29T16:00:00Z") from None
    return text


def _factor(number: float) -> float:
    if number < 1:
        raise ValueError(f"{number:g} would stop later than a save needs; 1 or more")
    if number > MAX_SAFETY_FACTOR:
        raise ValueError(f"{number:g} would leave no time to train; at most {MAX_SAFETY_FACTOR:g}")
    return number


def _flag_path(text: str) -> str:
    if text.startswith("/"):
        return text
    if not text or "/" in text or text in {".", ".."}:
        raise ValueError(f"{text!r} is neither a plain name in the runtime directory nor an absolute path")
    if text in _RESERVED:
        raise ValueError(f"{text!r} is the name of another file in the runtime directory")
    return text


def _unit(text: str) -> str:
    if text and not _UNIT.fullmatch(text):
        raise ValueError(f"{text!r} is no name of a systemd unit, such as spot-train.service")
    return text


def _absolute(text: str) -> str:
    if text and not text.startswith("/"):
        raise ValueError(f"{text!r} is not an absolute path")
    return text


def _regex(text: str) -> str:
    try:
        pattern = re.compile(text)
    except (re.error, RecursionError, OverflowError) as error:
        raise ValueError(f"{text!r} is no regular expression: {error}") from None
    if text and pattern.search(""):
        raise ValueError(f"{text!r} matches every process; name the script")
    return text


def _signal(text: str) -> str:
    known = [s.name for s in signal.Signals]
    if text not in known:
        raise ValueError(f"there is no signal {text!r}{closest('SIG' + text.removeprefix('SIG'), known)}")
    if text in _NEVER_SENT:
        raise ValueError(f"{text} leaves a trainer no time to save; SIGTERM is the usual one")
    return text


def _domain(text: str) -> str:
    name = text.strip().rstrip(".").lower()
    if not _DOMAIN.fullmatch(name):
        raise ValueError(f"{text!r} is no domain, such as digitalocean.com")
    return name


def _mail_address(text: str) -> str:
    address = text.strip().lower()
    local, at, domain = address.rpartition("@")
    if not at or not local or not address.isascii() or not _DOMAIN.fullmatch(domain):
        raise ValueError(f"{text!r} is no mail address, such as me@example.com")
    if _NOT_IN_ADDRESSES.search(address):
        raise ValueError(f"{text!r} is no single mail address; write each one out, such as me@example.com")
    return address


def _resolver(text: str) -> str:
    host, colon, port = text.rpartition(":")
    if not colon or (host.count(":") and not host.endswith("]")):
        host, port = text, "53"
    try:
        ipaddress.ip_address(host.strip("[]"))
    except ValueError:
        raise ValueError(f"{text!r} is no address of a name server, such as 1.1.1.1 or [::1]:5353") from None
    if not re.fullmatch(r"[0-9]{1,5}", port) or not 0 < int(port) <= 65535:  # noqa: PLR2004 - the last port
        raise ValueError(f"{text!r} has no port that one can ask")
    return text


def _ip_address(text: str) -> str:
    try:
        return str(ipaddress.ip_address(text.strip()))
    except ValueError:
        raise ValueError(f"{text!r} is no IP address") from None


def _droplet_id(number: int) -> int:
    if number < 1:
        raise ValueError(f"{number} is no Droplet's number")
    return number


def _mailbox(text: str) -> str:
    if text and urlsplit(text).scheme not in _MAILBOX_SCHEMES:
        raise ValueError(f"{mask_url(text)!r} is no mailbox; write s3://BUCKET/PREFIX or file:///DIR")
    return text


def _listen(text: str) -> str:
    parse_listen(text)
    return text


def _url(text: str) -> str:
    if not text:
        return text
    try:
        parts = urlsplit(text)
        good = parts.scheme in {"http", "https"} and bool(parts.hostname)
        _ = parts.port
    except ValueError:
        good = False
    if not good:
        # Not the value: receivers keep their token in it.
        raise ValueError("is no http:// or https:// address")
    return text


def _occasions(words: tuple[str, ...]) -> tuple[str, ...]:
    for word in words:
        if word not in OCCASIONS:
            raise ValueError(f"{word!r} is none of {', '.join(OCCASIONS)}")
    return words


def _announce(announce: Announce) -> None:
    if not announce.url and not announce.secret_file:
        raise ValueError("names no receiver; set url, or secret_file with the URL in it")
