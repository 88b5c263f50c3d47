# SPDX-License-Identifier: Apache-2.0
"""The fields of a posted form, urlencoded or multipart, as bytes, few and in memory only.

aiohttp's own `request.post()` writes files to disk and has no limit on their number. It does not know what a
field means; files are left out.
"""

from __future__ import annotations

import asyncio
import binascii
import re
from collections.abc import Mapping, Sequence

from spotwatch.errors import Malformed
from spotwatch.received import Received

MAX_FIELDS = 200
_MAX_NAME_CHARS = 200
# aiohttp takes each in a step of its own; all that is read of a mail, 256 KiB, has fewer.
_MAX_LINES = 140_000
# A browser sends none.
_MAX_BARE = 1000
_NO_ESCAPE = re.compile(rb"%(?![0-9A-Fa-f]{2})")


class Form:
    """Fields by name, each with all its values in the order they were sent."""

    def __init__(self, fields: Mapping[str, Sequence[bytes]]) -> None:
        self._fields = fields

    def __contains__(self, name: str) -> bool:
        return name in self._fields

    def last(self, name: str) -> bytes:
        """Return the last value of a field; empty when there is none."""
        return self._fields[name][-1] if name in self._fields else b""

    def only(self, name: str) -> bytes:
        """Return the value of a field; empty when there is none.

        Raises:
            Malformed: there are several, of which two readers could choose differently.
        """
        values = self._fields.get(name, ())
        if len(values) > 1:
            raise Malformed(f"the form has {len(values)} fields {name!r}")
        return values[0] if values else b""


async def read_form(request: Received) -> Form:
    """Return the fields of `request`.

    Raises:
        Malformed: it is no form, or has more than 200 fields.
    """
    content_type = request.headers.get("content-type", "")
    kind = content_type.partition(";")[0].strip().lower()
    if kind == "application/x-www-form-urlencoded":
        pairs = _urlencoded(request.body)
    elif kind == "multipart/form-data":
        pairs = await _multipart(content_type, request.body)
    else:
        raise Malformed("the request is no form")
    fields: dict[str, list[bytes]] = {}
    for name, value in pairs:
        fields.setdefault(name, []).append(value)
    return Form(fields)


def _urlencoded(body: bytes) -> list[tuple[str, bytes]]:
    # Not parse_qsl: it takes half a second for 1 MiB of escapes, before anything is authenticated.
    if not body.isascii():
        raise Malformed("the form cannot be read: it is not ASCII")
    if body.count(b"&") >= MAX_FIELDS:
        raise Malformed(f"the form has more than {MAX_FIELDS} fields")
    pairs = [field.partition(b"=") for field in body.split(b"&") if field]
    return [(_decoded(name).decode("latin-1")[:_MAX_NAME_CHARS], _decoded(value)) for name, _, value in pairs]


def _decoded(text: bytes) -> bytes:
    """Return the bytes behind escapes; a mail need not be UTF-8, and what is no escape stays.

    Raises:
        Malformed: nearly nothing is.
    """
    text, count = _NO_ESCAPE.subn(b"%25", text.replace(b"+", b" "), _MAX_BARE)
    if count >= _MAX_BARE:
        raise Malformed("the form cannot be read: its escapes are none")
    # Quoted-printable differs in the sign only, and is decoded without a step of Python for each escape.
    return binascii.a2b_qp(text.replace(b"=", b"=3D").replace(b"%", b"="))


async def _multipart(content_type: str, body: bytes) -> list[tuple[str, bytes]]:
    # Imported late: most daemons never see a form.
    from aiohttp import hdrs  # noqa: PLC0415
    from aiohttp.base_protocol import BaseProtocol  # noqa: PLC0415
    from aiohttp.multipart import BodyPartReader, MultipartReader  # noqa: PLC0415
    from aiohttp.streams import StreamReader  # noqa: PLC0415

    if body.count(b"\r\n") > _MAX_LINES:
        raise Malformed(f"the form has more than {_MAX_LINES} lines")
    loop = asyncio.get_running_loop()
    # A limit that is never reached: there is no transport that could be told to pause.
    stream = StreamReader(BaseProtocol(loop), limit=len(body) + 1, loop=loop)
    stream.feed_data(body)
    stream.feed_eof()
    pairs: list[tuple[str, bytes]] = []
    try:
        reader = MultipartReader({hdrs.CONTENT_TYPE: content_type}, stream)
        count = 0
        while (part := await reader.next()) is not None:
            count += 1
            if count > MAX_FIELDS:
                raise Malformed(f"the form has more than {MAX_FIELDS} fields")
            if not isinstance(part, BodyPartReader):
                raise Malformed("the form has a form in it")
            value = bytes(await part.read(decode=False))
            if part.name and part.filename is None:
                pairs.append((part.name[:_MAX_NAME_CHARS], value))
    except Malformed:
        raise
    except Exception as error:
        # aiohttp raises ValueError, RuntimeError, LookupError, AssertionError and its own here.
        raise Malformed(f"the form cannot be read: {type(error).__name__}") from error
    return pairs
