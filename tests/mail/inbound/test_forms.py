# SPDX-License-Identifier: Apache-2.0
"""Posted forms: what comes out of them, and that none is too much."""

from __future__ import annotations

import contextlib
import time
from urllib.parse import parse_qsl, quote_from_bytes

import pytest

from spotwatch.errors import Malformed
from spotwatch.mail.inbound._forms import Form, read_form
from spotwatch.received import Received

URLENCODED = "application/x-www-form-urlencoded"
MULTIPART = "multipart/form-data; boundary=XX"


async def read(body: bytes, content_type: str = MULTIPART) -> Form:
    """Read a form."""
    return await read_form(Received(headers={"content-type": content_type}, body=body))


def multipart(*parts: tuple[bytes, bytes]) -> bytes:
    """Return the body of (headers, content) parts."""
    return b"".join(b"--XX\r\n" + head + b"\r\n\r\n" + body + b"\r\n" for head, body in parts) + b"--XX--\r\n"


def field(name: bytes, body: bytes = b"1", more: bytes = b"") -> tuple[bytes, bytes]:
    """Return a part with a name."""
    return b'Content-Disposition: form-data; name="' + name + b'"' + more, body


@pytest.mark.parametrize(
    ("content_type", "body"),
    [(URLENCODED, b"mail=a%FF%0D%0Ab+c%2B"), (MULTIPART, multipart(field(b"mail", b"a\xff\r\nb c+")))],
)
async def test_a_field_comes_out_byte_for_byte(content_type: str, body: bytes) -> None:
    """A mail in a form need not be text."""
    form = await read(body, content_type)
    assert form.only("mail") == form.last("mail") == b"a\xff\r\nb c+"


@pytest.mark.hostile(20)
@pytest.mark.parametrize(
    ("content_type", "body"),
    [(URLENCODED, b"a=1&a=2"), (MULTIPART, multipart(field(b"a", b"1"), field(b"a", b"2")))],
)
async def test_a_field_given_twice_is_the_last_or_refused(content_type: str, body: bytes) -> None:
    """Who wants one value is told of two."""
    form = await read(body, content_type)
    assert form.last("a") == b"2"
    with pytest.raises(Malformed, match="2 fields 'a'"):
        form.only("a")


async def test_a_field_that_is_missing_is_empty() -> None:
    """Nothing is nothing, by either question."""
    form = await read(b"a=1", URLENCODED)
    assert (form.last("b"), form.only("b"), "b" in form, "a" in form) == (b"", b"", False, True)


@pytest.mark.hostile(19)
async def test_files_and_nameless_parts_are_left_out() -> None:
    """A path in a file's name leads nowhere, and an attachment is no field."""
    body = multipart(
        field(b"file", more=b'; filename="../../etc/passwd"'),
        (b"Content-Disposition: form-data", b"nameless"),
        field(b"kept"),
    )
    form = await read(body)
    assert "kept" in form
    assert "file" not in form


@pytest.mark.hostile(19)
async def test_transfer_encodings_are_not_undone() -> None:
    """What is not unpacked cannot be a bomb."""
    form = await read(multipart(field(b"a", b"MQ==", b"\r\nContent-Transfer-Encoding: base64")))
    assert form.only("a") == b"MQ=="


@pytest.mark.hostile(19, 20)
@pytest.mark.parametrize(
    ("content_type", "body"),
    [
        ("multipart/form-data", multipart(field(b"a"))),
        ("multipart/form-data; boundary=", multipart(field(b"a"))),
        (f'multipart/form-data; boundary="{"b" * 500}"', multipart(field(b"a"))),
        (MULTIPART, b""),
        (MULTIPART, b"no boundary at all"),
        (MULTIPART, multipart(field(b"a"))[:-12]),
        (MULTIPART, multipart(*[field(b"a")] * 1000)),
        (MULTIPART, multipart(field(b"n" * 65536))),
        (MULTIPART, multipart(field(b"a\0b"))),
        (MULTIPART, multipart(field(b"mail", b"\r\n" * 140_000))),
        (MULTIPART, multipart((b"Content-Type: multipart/mixed; boundary=YY", b"--YY\r\n\r\nx\r\n--YY--"))),
        (URLENCODED, b"&".join(b"a=1" for _ in range(201))),
        (URLENCODED, b"a=\xff"),
        (URLENCODED, b"a=" + b"%" * 1000),
        ("text/plain", b"a=1"),
        ("", b"a=1"),
    ],
)
async def test_what_is_no_form_of_ours_is_malformed(content_type: str, body: bytes) -> None:
    """Each oddity ends in Malformed, which is answered with 4xx."""
    with pytest.raises(Malformed):
        await read(body, content_type)


@pytest.mark.parametrize(
    ("sent", "meant"),
    [
        (b"%41%2b+%3D=", b"A+ =="),
        (b"%", b"%"),
        (b"100%25%%2", b"100%%%2"),
        (b"=41=\r\n =", b"=41=\r\n ="),
        (b"a \r\n\t\n", b"a \r\n\t\n"),
        (quote_from_bytes(bytes(range(256)), safe="").encode(), bytes(range(256))),
    ],
)
async def test_escapes_are_undone_once_and_the_rest_stays(sent: bytes, meant: bytes) -> None:
    """As the standard library does it, which takes too long for what nobody has signed."""
    assert (await read(b"a=" + sent, URLENCODED)).only("a") == meant
    [(_, found)] = parse_qsl(f"a={sent.decode()}", keep_blank_values=True, encoding="latin-1")
    assert found.encode("latin-1") == meant


@pytest.mark.hostile(19)
@pytest.mark.parametrize("unit", [b"%41", b"%41a", b"%", b"%4", b"+"])
async def test_no_escapes_cost_much_more_than_none(unit: bytes) -> None:
    """Mebibytes of them, from whomever: each must be read before anything is known of its sender."""

    async def seconds(one: bytes) -> float:
        begin = time.process_time()
        with contextlib.suppress(Malformed):
            await read(b"a=" + one * (1_000_000 // len(one)), URLENCODED)
        return time.process_time() - begin

    plain = min([await seconds(b"a") for _ in range(3)])
    assert min([await seconds(unit) for _ in range(3)]) < max(0.0005, plain) * 100


async def test_a_long_field_fits() -> None:
    """A mail of the listener's limit comes through, many short lines too."""
    for body in (b"x" * 262000, b"\r\n" * 131000):
        form = await read(multipart(field(b"mail", body)))
        assert form.only("mail") == body
