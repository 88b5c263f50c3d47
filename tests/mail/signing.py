# SPDX-License-Identifier: Apache-2.0
"""Mail signed by DKIM with keys made here, and name servers in memory that publish them.

RFC 6376 is written out once more on purpose: what signs in tests shares nothing with what verifies. It signs
whatever it is told to, sensible or not.
"""

from __future__ import annotations

import base64
import functools
import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from spotwatch.mail.keys import KeyAnswer, KeyState

HEADERS = (
    "from",
    "to",
    "subject",
    "date",
    "message-id",
    "mime-version",
    "content-type",
    "content-transfer-encoding",
)
"""Signed unless a test says otherwise, whether they are there or not."""

# RFC 8017, section 9.2, note 1: what stands before a digest.
_DIGEST_INFO = {
    "sha256": bytes.fromhex("3031300d060960864801650304020105000420"),
    "sha1": bytes.fromhex("3021300906052b0e03021a05000414"),
}
_EXPONENT = 65537
# Too short for cryptography to make, so made once by openssl.
_SHORT_PRIMES = (
    0xE55309EB6717CFE48D5DB5471D40A207DBD699EF5E0EC0F0718D0C7ACEB03B4E2EB2D200E39F81B26DF647E84D3E46E1,
    0xE72DB864C68235D5B81A85F210E1594917B95ED7AD9246551BE3BD8F27264265925735001BBE9BFF3E32295B22A977C5,
)


@dataclass(frozen=True, slots=True)
class _Key:
    modulus: int
    secret: int

    def sign(self, digest: str, data: bytes) -> bytes:
        """Return the PKCS #1 v1.5 signature of `data`."""
        size = (self.modulus.bit_length() + 7) // 8
        info = _DIGEST_INFO[digest] + hashlib.new(digest, data).digest()
        padded = b"\x00\x01" + b"\xff" * (size - len(info) - 3) + b"\x00" + info
        return pow(int.from_bytes(padded), self.secret, self.modulus).to_bytes(size)

    @property
    def public(self) -> str:
        """Return the SubjectPublicKeyInfo, base64."""
        return public_key(self.modulus, _EXPONENT)


def public_key(modulus: int, exponent: int) -> str:
    """Return an RSA key as records have it: SubjectPublicKeyInfo, base64."""
    key = _der(0x30, _integer(modulus) + _integer(exponent))
    algorithm = bytes.fromhex("300d06092a864886f70d0101010500")
    return base64.b64encode(_der(0x30, algorithm + _der(0x03, b"\x00" + key))).decode()


@functools.cache
def _key(owner: str, bits: int) -> _Key:
    """Return the key of `owner`, made once a session: making one is slow."""
    del owner
    if bits == 768:
        p, q = _SHORT_PRIMES
        return _Key(p * q, pow(_EXPONENT, -1, (p - 1) * (q - 1)))
    numbers = rsa.generate_private_key(_EXPONENT, bits).private_numbers()
    return _Key(numbers.public_numbers.n, numbers.d)


@functools.cache
def _edwards_key(owner: str) -> Ed25519PrivateKey:
    del owner
    return Ed25519PrivateKey.generate()


@dataclass(frozen=True, slots=True)
class Signer:
    """Who signs.

    Args:
        domain: `d=`.
        selector: `s=`.
        bits: of the RSA key; 768 is the shortest.
        owner: whose key; two owners never have the same.
        record: published instead of the right one, in which `{p}` stands for the public key.
    """

    domain: str = "digitalocean.com"
    selector: str = "s1"
    bits: int = 2048
    owner: str = "genuine"
    record: str = "v=DKIM1; k=rsa; p={p}"

    @property
    def key_name(self) -> str:
        """Return where its key is published."""
        return f"{self.selector}._domainkey.{self.domain}".lower()

    @property
    def records(self) -> dict[str, str]:
        """Return the TXT records that it publishes, by name."""
        p = _key(self.owner, self.bits).public
        if "ed25519" in self.record:
            p = base64.b64encode(_edwards_key(self.owner).public_key().public_bytes_raw()).decode()
        return {self.key_name: self.record.format(p=p)}

    @property
    def answers(self) -> dict[str, KeyAnswer]:
        """Return the same as `prove` wants it."""
        return {n: KeyAnswer(state=KeyState.FOUND, text=text) for n, text in self.records.items()}

    def sign(
        self,
        raw: bytes,
        *,
        headers: Sequence[str] = HEADERS,
        canonicalization: str = "relaxed/relaxed",
        algorithm: str = "rsa-sha256",
        length: int | None = None,
        tags: Mapping[str, str] | None = None,
    ) -> bytes:
        """Return the mail with this signature on top, with CRLF line ends.

        Args:
            raw: with LF or CRLF line ends.
            headers: signed, in this order; a name given once more than it is there forbids another.
            canonicalization: `c=`.
            algorithm: `a=`.
            length: how many bytes of the body are signed, as `l=`; None: all.
            tags: more of them, or other values: `{"i": "@example.org", "t": "1796000000", "x": ...}`.
        """
        raw = re.sub(rb"\r?\n", b"\r\n", raw)
        head, _, body = raw.partition(b"\r\n\r\n")
        head_form, _, body_form = canonicalization.partition("/")
        digest = algorithm.rpartition("-")[2]
        signed_body = _canonical_body(body, body_form or "simple")[:length]
        fields = {
            "v": "1",
            "a": algorithm,
            "c": canonicalization,
            "d": self.domain,
            "s": self.selector,
            "h": ":".join(headers),
            **({} if length is None else {"l": str(length)}),
            "bh": base64.b64encode(hashlib.new(digest, signed_body).digest()).decode(),
            **(tags or {}),
        }
        value = " " + ";\r\n\t".join(f"{name}={text}" for name, text in fields.items()) + ";\r\n\tb="
        data = b"".join(_canonical(field, head_form) + b"\r\n" for field in _chosen(head, headers))
        data += _canonical(b"DKIM-Signature:" + value.encode(), head_form)
        if algorithm.startswith("ed25519"):
            signature = _edwards_key(self.owner).sign(hashlib.sha256(data).digest())
        else:
            signature = _key(self.owner, self.bits).sign(digest, data)
        return b"DKIM-Signature:" + value.encode() + base64.b64encode(signature) + b"\r\n" + raw


class StubResolver:
    """DNS in memory.

    Args:
        records: TXT records by name; every other name is missing.
    """

    def __init__(self, records: Mapping[str, str] | None = None) -> None:
        self.records = dict(records or {})
        self.is_down = False
        """While it is, nothing gets an answer."""
        self.asked: list[str] = []

    async def resolve(self, name: str) -> KeyAnswer:
        """Return the record at `name`, which may be remembered for five minutes."""
        self.asked.append(name)
        if self.is_down:
            return KeyAnswer(state=KeyState.NO_ANSWER, why="DNS is down")
        if name not in self.records:
            return KeyAnswer(state=KeyState.MISSING, why="no such record")
        return KeyAnswer(state=KeyState.FOUND, text=self.records[name], ttl_seconds=300.0)


def _chosen(head: bytes, names: Sequence[str]) -> list[bytes]:
    """Return the header fields that `names` stand for: of several, the lowest first (RFC 6376, 5.4.2)."""
    fields = re.split(rb"\r\n(?![ \t])", head)
    chosen = []
    for name in names:
        for at in range(len(fields) - 1, -1, -1):
            if fields[at].partition(b":")[0].strip().lower() == name.lower().encode():
                chosen.append(fields.pop(at))
                break
    return chosen


def _canonical(field: bytes, form: str) -> bytes:
    if form == "simple":
        return field
    name, _, value = field.partition(b":")
    return name.strip().lower() + b":" + re.sub(rb"[ \t]+", b" ", value.replace(b"\r\n", b"")).strip()


def _canonical_body(body: bytes, form: str) -> bytes:
    if form == "relaxed":
        lines = [re.sub(rb"[ \t]+", b" ", line).rstrip(b" ") for line in body.split(b"\r\n")]
        body = b"\r\n".join(lines)
    body = re.sub(rb"(?:\r\n)+\Z", b"", body)
    return body + b"\r\n" if body or form == "simple" else b""


def _integer(number: int) -> bytes:
    return _der(0x02, number.to_bytes(number.bit_length() // 8 + 1))


def _der(tag: int, content: bytes) -> bytes:
    size = len(content)
    if size < 0x80:
        return bytes([tag, size]) + content
    length = size.to_bytes((size.bit_length() + 7) // 8)
    return bytes([tag, 0x80 | len(length)]) + length + content
