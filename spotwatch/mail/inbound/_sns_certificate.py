# SPDX-License-Identifier: Apache-2.0
"""What a certificate must be for Amazon SNS to have signed with it, and how its file is fetched.

What is checked: the host's TLS certificate, by the system's roots; of the signing certificate the time, the
names, that Amazon issued it, that it is no authority and has an RSA key of 2048 bits or more; and each link
of as much of a chain as the file brings. What is not: the link from there to a root, since the file brings
the leaf alone and the rest would have to be fetched from an address within it. AWS's own SDK for Java checks
the host's name and the time (`CertificateRetriever`, 2.x, read 2026-11-29).

It does not choose an address, and follows none: no redirect, no proxy, 16 KiB and three seconds at most. It
remembers nothing.
"""

from __future__ import annotations

import asyncio
import itertools
import ssl
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from spotwatch.errors import Malformed, Unavailable
from spotwatch.mail.extra import require
from spotwatch.mail.inbound._sns import Topic

MAX_BYTES = 16 * 1024
FETCH_SECONDS = 3.0
_MAX_CHAIN = 4
_MIN_KEY_BITS = 2048
_OK = 200
# What the host says of a file that it does not have.
_MISSING = frozenset({403, 404})


class NoSuchFile(Unavailable):
    """The host of the certificates answers, and has no file of that name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Certificate:
    """A certificate that SNS may have signed with."""

    key: Any
    """The RSA key."""
    until: datetime
    """How long it counts, aware."""


async def download(url: str, *, connector: Any = None) -> bytes:
    """Return the bytes at `url`, which the caller has put together himself.

    Args:
        url: https.
        connector: how aiohttp connects; None: by the system's names and roots.

    Raises:
        NoSuchFile: the host has none.
        Unavailable: no answer in time, or none with 200.
        Malformed: it has more than 16 KiB.
    """
    import aiohttp  # noqa: PLC0415 - a relay or daemon without this service has no use for it here

    try:
        async with (
            asyncio.timeout(FETCH_SECONDS),
            aiohttp.ClientSession(
                connector=connector,
                trust_env=False,
                auto_decompress=False,
                cookie_jar=aiohttp.DummyCookieJar(),
                headers={"User-Agent": "spotwatch", "Accept-Encoding": "identity"},
            ) as session,
            session.get(url, allow_redirects=False) as reply,
        ):
            if reply.status in _MISSING:
                raise NoSuchFile(f"{url} answers {reply.status}")
            if reply.status != _OK:
                raise Unavailable(f"{url} answers {reply.status}")
            body = bytearray()
            async for chunk in reply.content.iter_any():
                body += chunk
                if len(body) > MAX_BYTES:
                    raise Malformed(f"{url} has more than {MAX_BYTES} bytes")
    except (TimeoutError, aiohttp.ClientError, ssl.SSLError, OSError) as error:
        raise Unavailable(f"{url} does not answer ({type(error).__name__})") from error
    return bytes(body)


def read_certificate(pem: bytes, topic: Topic, now: datetime) -> Certificate:
    """Return the key in a certificate, and until when it counts.

    Raises:
        Malformed: it is no certificate that SNS signs messages of `topic` with.
    """
    x509 = require("cryptography.x509")
    rsa = require("cryptography.hazmat.primitives.asymmetric.rsa")
    try:
        chain = x509.load_pem_x509_certificates(pem)
        leaf = chain[0]
        key = leaf.public_key()
        names, issuers = _names(leaf), _texts(leaf.issuer, "ORGANIZATION_NAME")
        is_authority = _is_authority(leaf)
    except (ValueError, TypeError, require("cryptography.exceptions").UnsupportedAlgorithm) as error:
        raise Malformed("what signs is no certificate") from error
    if not leaf.not_valid_before_utc <= now <= leaf.not_valid_after_utc:
        raise Malformed(
            f"the certificate holds from {leaf.not_valid_before_utc} to {leaf.not_valid_after_utc} only"
        )
    if names.isdisjoint(_expected_names(topic)):
        raise Malformed(f"the certificate is not one of {topic.host}")
    if is_authority or leaf.issuer == leaf.subject:
        raise Malformed("the certificate is an authority's, or its own")
    if topic.partition == "aws" and "Amazon" not in issuers:
        raise Malformed("the certificate was not issued by Amazon")
    if not isinstance(key, rsa.RSAPublicKey) or key.key_size < _MIN_KEY_BITS:
        raise Malformed(f"the certificate has no RSA key of {_MIN_KEY_BITS} bits")
    _check_chain(chain)
    return Certificate(key=key, until=leaf.not_valid_after_utc)


def _expected_names(topic: Topic) -> frozenset[str]:
    """Return what a signing certificate of the topic's region may be called.

    AWS SDK for Java 2.x, `SnsHostProvider`, read 2026-11-29: `sns.amazonaws.com` in the old regions, one of
    their own in those that are opted into, and others in GovCloud and China.
    """
    names = {topic.host, "sns.amazonaws.com", f"sns-signing.{topic.region}.amazonaws.com"}
    if topic.partition == "aws-us-gov":
        names = {topic.host, "sns-us-gov-west-1.amazonaws.com"}
    elif topic.partition == "aws-cn":
        names = {topic.host, f"sns-{topic.region}.amazonaws.com.cn"}
    return frozenset(names)


def _names(certificate: Any) -> frozenset[str]:
    """Return the DNS names of a certificate; its common name where it has no others."""
    x509 = require("cryptography.x509")
    try:
        others = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName)
    except x509.ExtensionNotFound:
        return frozenset(_texts(certificate.subject, "COMMON_NAME"))
    return frozenset(others.value.get_values_for_type(x509.DNSName))


def _texts(name: Any, kind: str) -> list[str]:
    oid = getattr(require("cryptography.x509.oid").NameOID, kind)
    return [str(attribute.value) for attribute in name.get_attributes_for_oid(oid)]


def _is_authority(certificate: Any) -> bool:
    x509 = require("cryptography.x509")
    try:
        return bool(certificate.extensions.get_extension_for_class(x509.BasicConstraints).value.ca)
    except x509.ExtensionNotFound:
        return False


def _check_chain(chain: list[Any]) -> None:
    """Refuse certificates of which one was not signed by the next.

    Raises:
        Malformed: says so.
    """
    if len(chain) > _MAX_CHAIN:
        raise Malformed(f"the file has more than {_MAX_CHAIN} certificates")
    for below, above in itertools.pairwise(chain):
        try:
            below.verify_directly_issued_by(above)
        except (ValueError, TypeError, require("cryptography.exceptions").InvalidSignature) as error:
            raise Malformed("the certificates in the file do not belong together") from error
