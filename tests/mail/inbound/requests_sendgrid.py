# SPDX-License-Identifier: Apache-2.0
"""Requests as SendGrid's parse webhook posts them under a security policy."""

from __future__ import annotations

import base64
import functools
from collections.abc import Mapping

from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from spotwatch.mail.inbound.sendgrid import SIGNATURE, TIMESTAMP, Config
from spotwatch.received import Received
from tests.mail.inbound.services import MAIL, NOW

SECRETS: Mapping[str, str] = {}
BOUNDARY = "xYzZY"


@functools.cache
def key(number: int = 1) -> ec.EllipticCurvePrivateKey:
    """Return a fixed key of the curve P-256."""
    return ec.derive_private_key(1000 + number, ec.SECP256R1())


def public(private: ec.EllipticCurvePrivateKey) -> str:
    """Return the public key as the console shows it."""
    der = private.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    return base64.b64encode(der).decode()


config = Config(verification_keys=(public(key(1)), public(key(2))))


def multipart(**fields: bytes) -> bytes:
    """Return the body of a form."""
    parts = (
        f'--{BOUNDARY}\r\nContent-Disposition: form-data; name="{name}"\r\n\r\n'.encode() + value + b"\r\n"
        for name, value in fields.items()
    )
    return b"".join(parts) + f"--{BOUNDARY}--\r\n".encode()


def request(
    body: bytes, headers: Mapping[str, str] | None = None, *, number: int = 1, age_seconds: float = 0
) -> Received:
    """Return a signed request."""
    stamp = str(int(NOW.timestamp() - age_seconds))
    signature = key(number).sign(stamp.encode() + body, ec.ECDSA(SHA256()))
    made = {
        "content-type": f"multipart/form-data; boundary={BOUNDARY}",
        TIMESTAMP: stamp,
        SIGNATURE: base64.b64encode(signature).decode(),
    }
    return Received(
        headers={k: v for k, v in {**made, **(headers or {})}.items() if v}, body=body, path="sendgrid"
    )


def good() -> Received:
    """Return the raw mail, signed."""
    return request(multipart(email=MAIL, to=b"in@example.com"))


def tampered() -> list[tuple[str, Received]]:
    """Return what is not SendGrid's."""
    body = multipart(email=MAIL)
    right = request(body)
    return [
        ("another key", request(body, number=3)),
        ("another body", Received(headers=right.headers, body=body + b" ")),
        ("another time", request(body, {TIMESTAMP: "1796000001"})),
        ("no time", request(body, {TIMESTAMP: ""})),
        ("no signature", request(body, {SIGNATURE: ""})),
        ("no base64", request(body, {SIGNATURE: "\u00e4\u00e4"})),
        ("a signature that is none", request(body, {SIGNATURE: base64.b64encode(b"x" * 70).decode()})),
        ("a signature of a megabyte", request(body, {SIGNATURE: "A" * 1_000_000})),
    ]
