# SPDX-License-Identifier: Apache-2.0
"""One HTTP receiver (Slack, a webhook of yours) that is told what happened.

TLS is verified, no redirect is followed, no proxy used. Neither the URL nor a secret ever appears in an error
or a result: a Slack URL is a secret. A failure changes nothing else; what is told is decided elsewhere.
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
import string
from collections.abc import Mapping
from typing import Any, ClassVar, get_args
from urllib.parse import urlsplit

import aiohttp

from spotwatch.actions import Occasion
from spotwatch.config import Announce
from spotwatch.config_secrets import read_secret
from spotwatch.errors import ActionError, ConfigError
from spotwatch.model import Notice, to_rfc3339

ATTEMPTS = 3
PLACEHOLDERS = ("provider", "kind", "event", "deadline", "why", "host")
_BACKOFF_SECONDS = 0.5
_MAX_WAIT_SECONDS = 5.0
# What Slack wants escaped: https://docs.slack.dev/messaging/formatting-message-text, read 2026-11-29.
_SLACK_ESCAPES = str.maketrans({"&": "&amp;", "<": "&lt;", ">": "&gt;"})


class AnnounceTeller:
    """Post what happened, at most three times until it is taken.

    Args:
        settings: the receiver.
        backoff_seconds: the first wait between attempts; it doubles.

    Raises:
        ConfigError: URL, template or occasions are wrong; all at once.
    """

    name: ClassVar[str] = "announce"

    def __init__(self, settings: Announce, *, backoff_seconds: float = _BACKOFF_SECONDS) -> None:
        problems = [*_url_problems(settings), *_template_problems(settings.template)]
        if unknown := sorted(set(settings.on) - set(get_args(Occasion))):
            problems.append(
                f"announce.on: unknown {', '.join(unknown)}; have {', '.join(get_args(Occasion))}"
            )
        if problems:
            raise ConfigError(*problems)
        self._settings = settings
        self._template = string.Template(settings.template)
        self._is_json = bool(settings.template) and _is_json(self._template)
        self._backoff_seconds = backoff_seconds

    @property
    def occasions(self) -> frozenset[Occasion]:
        """Return what this receiver wants to hear of."""
        return frozenset(occasion for occasion in get_args(Occasion) if occasion in self._settings.on)

    async def tell(self, occasion: Occasion, notice: Notice, facts: Mapping[str, Any]) -> str:
        """Post it and return the status; network errors, 429 and 5xx are tried again.

        Each attempt has `timeout_seconds`.

        Raises:
            ActionError: it was not taken.
        """
        url, headers = await asyncio.to_thread(self._address)
        body, content_type = self._body(occasion, notice, facts)
        headers = {"Content-Type": content_type, **headers}
        problem = ""
        timeout = aiohttp.ClientTimeout(total=self._settings.timeout_seconds)
        async with aiohttp.ClientSession(timeout=timeout, trust_env=False) as session:
            for attempt in range(ATTEMPTS):
                wait_seconds = self._backoff_seconds * 2**attempt
                try:
                    async with session.post(
                        url, data=body, headers=headers, allow_redirects=False
                    ) as response:
                        status = response.status
                        asked_seconds = _retry_after(response.headers)
                except (aiohttp.ClientError, OSError, ValueError) as error:
                    problem = _harmless(error, self._settings.timeout_seconds)
                else:
                    if 200 <= status < 300:  # noqa: PLR2004 - HTTP's own numbers
                        return f"announced {occasion}: HTTP {status}"
                    problem = f"HTTP {status}"
                    if status != 429 and status < 500:  # noqa: PLR2004 - HTTP's own numbers
                        break
                    wait_seconds = max(wait_seconds, asked_seconds)
                if attempt + 1 < ATTEMPTS:
                    await asyncio.sleep(min(wait_seconds, _MAX_WAIT_SECONDS))
        raise ActionError(f"{occasion} was not announced: {problem}")

    def _address(self) -> tuple[str, dict[str, str]]:
        """Return URL and headers; the secret is read at each telling, so that it may be rotated."""
        settings = self._settings
        headers = dict(settings.headers)
        if not settings.secret_file:
            return settings.url, headers
        secret = _read_secret(settings.secret_file)
        if not settings.url:
            if _is_bad_url(secret):
                raise ActionError(f"{settings.secret_file} holds no http(s) URL")
            return secret, headers
        headers["Authorization"] = f"Bearer {secret}"
        return settings.url, headers

    def _body(self, occasion: Occasion, notice: Notice, facts: Mapping[str, Any]) -> tuple[bytes, str]:
        values = _values(occasion, notice, facts)
        if self._settings.preset == "slack":
            safe = {name: value.translate(_SLACK_ESCAPES) for name, value in values.items()}
            text = self._template if self._settings.template else _SLACK_TEXT
            return _json_body({"text": text.substitute(safe)})
        if self._is_json:
            safe = {name: json.dumps(value)[1:-1] for name, value in values.items()}
            return self._template.substitute(safe).encode(), "application/json"
        if self._settings.template:
            return self._template.substitute(values).encode(), "text/plain; charset=utf-8"
        return _json_body(
            {
                "version": 1,
                "event": occasion,
                "host": values["host"],
                "notice": notice.to_json(),
                "facts": dict(facts),
            }
        )


_SLACK_TEXT = string.Template("*$event* on `$host`: $provider $kind, deadline $deadline. $why")


def _values(occasion: Occasion, notice: Notice, facts: Mapping[str, Any]) -> dict[str, str]:
    return {
        "provider": notice.provider,
        "kind": notice.kind.value,
        "event": occasion,
        "deadline": "unknown" if notice.deadline is None else to_rfc3339(notice.deadline),
        "why": str(facts.get("why") or notice.detail),
        "host": socket.gethostname(),
    }


def _json_body(content: Mapping[str, Any]) -> tuple[bytes, str]:
    return json.dumps(content, default=str).encode(), "application/json"


def _url_problems(settings: Announce) -> list[str]:
    if not settings.url:
        return [] if settings.secret_file else ["announce: set url, or secret_file with the URL in it"]
    # The URL is not repeated: it may be the secret itself.
    return ["announce.url is no http(s) URL with a host"] if _is_bad_url(settings.url) else []


def _is_bad_url(url: str) -> bool:
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        return True
    return parts.scheme not in ("http", "https") or not parts.hostname or port == 0


def _template_problems(text: str) -> list[str]:
    template = string.Template(text)
    if not template.is_valid():
        return ["announce.template: a $ that begins no placeholder; write $$ for the character"]
    unknown = [name for name in template.get_identifiers() if name not in PLACEHOLDERS]
    if not unknown:
        return []
    names = ", ".join(f"${name}" for name in unknown)
    return [f"announce.template: unknown {names}; have {', '.join(f'${name}' for name in PLACEHOLDERS)}"]


def _is_json(template: string.Template) -> bool:
    """Tell whether the template is a JSON document, so that its values need escaping."""
    try:
        json.loads(template.substitute(dict.fromkeys(PLACEHOLDERS, "x")))
    except ValueError:
        return False
    return True


def _read_secret(path: str) -> str:
    try:
        text = read_secret(path)
    except ConfigError as error:
        raise ActionError(str(error)) from error
    if not (text.isascii() and text.isprintable()):
        raise ActionError(f"secret file {path} holds more than one line of plain characters")
    return text


def _retry_after(headers: Mapping[str, str]) -> float:
    """Return Retry-After in seconds; 0 without one, or where it is a date."""
    text = headers.get("Retry-After", "")
    return float(text[:6]) if text.isascii() and text.isdigit() else 0.0


def _harmless(error: Exception, timeout_seconds: float) -> str:
    """Describe `error` without its own words: aiohttp puts host and URL into them."""
    if isinstance(error, TimeoutError):
        return f"no answer within {timeout_seconds:g} s"
    if isinstance(error, aiohttp.ClientConnectorCertificateError):
        return "its TLS certificate is not trusted"
    source = error.os_error if isinstance(error, aiohttp.ClientConnectorError) else error
    code = source.errno if isinstance(source, OSError) else None
    # Not its strerror: asyncio writes the address into it. Negative numbers are the resolver's.
    return type(error).__name__ + (f": {os.strerror(code)}" if code and code > 0 else "")
