# SPDX-License-Identifier: Apache-2.0
"""The key that a relay signs with, and what its Droplets verify with: ed25519, so that none can forge.

Standard Webhooks 1.0.0, "Signature scheme" (github.com/standard-webhooks, spec/standard-webhooks.md, read
2026-11-29): `v1a,` and the base64 of the signature over `id.timestamp.body`; a secret key is `whsk_`, a
public one `whpk_` and base64. Of a secret key there are two forms: the seed's 32 bytes, or those and the
public key's (libsodium's, which the reference server writes). It does not know what is signed.
"""

from __future__ import annotations

import base64
import binascii
import hmac
import os
from collections.abc import Sequence
from typing import Any, Self

from spotwatch.errors import ConfigError
from spotwatch.mail.extra import require

SECRET_PREFIX = "whsk_"  # noqa: S105 - how a key begins
PUBLIC_PREFIX = "whpk_"
SCHEME = "v1a"

_KEY_BYTES = 32
_MAX_SIGNATURES = 16
_MAX_SIGNATURES_CHARS = 4096
_MEND = "make a pair with: spotwatch relay --make-key FILE"


class SigningKey:
    """The relay's secret.

    Args:
        seed: 32 random bytes.
    """

    def __init__(self, seed: bytes) -> None:
        self._seed = seed
        self._key = _ed25519().Ed25519PrivateKey.from_private_bytes(seed)
        self._public: bytes = self._key.public_key().public_bytes_raw()

    @classmethod
    def make(cls) -> Self:
        """Return a new key."""
        return cls(os.urandom(_KEY_BYTES))

    @classmethod
    def parse(cls, text: str) -> Self:
        """Return the key in `whsk_<base64>`.

        Raises:
            ConfigError: it is none; the text is not repeated.
        """
        raw = _decode(text, SECRET_PREFIX, "signing")
        if len(raw) not in (_KEY_BYTES, 2 * _KEY_BYTES):
            raise ConfigError(f"the signing key has {len(raw)} bytes, not 32 or 64; {_MEND}")
        key = cls(raw[:_KEY_BYTES])
        if raw[_KEY_BYTES:] and not hmac.compare_digest(raw[_KEY_BYTES:], key._public):
            raise ConfigError(f"the two halves of the signing key do not belong together; {_MEND}")
        return key

    @property
    def secret_text(self) -> str:
        """Return the key as its file holds it."""
        return SECRET_PREFIX + base64.b64encode(self._seed + self._public).decode()

    @property
    def public(self) -> PublicKey:
        """Return the key that the Droplets are given."""
        return PublicKey(self._public)

    def sign(self, webhook_id: str, timestamp: int, body: bytes) -> str:
        """Return the signature; `timestamp` is in Unix seconds."""
        signature: bytes = self._key.sign(_signed(webhook_id, str(timestamp), body))
        return f"{SCHEME},{base64.b64encode(signature).decode()}"


class PublicKey:
    """What a Droplet verifies with; no secret.

    Args:
        raw: 32 bytes.
    """

    def __init__(self, raw: bytes) -> None:
        self._raw = raw
        self._key = _ed25519().Ed25519PublicKey.from_public_bytes(raw)

    @classmethod
    def parse(cls, text: str) -> Self:
        """Return the key in `whpk_<base64>`.

        Raises:
            ConfigError: it is none.
        """
        if text.strip().startswith(SECRET_PREFIX):
            raise ConfigError(
                f"this is the relay's signing key; a Droplet gets the one that begins with {PUBLIC_PREFIX}"
            )
        raw = _decode(text, PUBLIC_PREFIX, "public")
        if len(raw) != _KEY_BYTES:
            raise ConfigError(f"the public key has {len(raw)} bytes, not 32; {_MEND}")
        try:
            return cls(raw)
        except ValueError as error:
            raise ConfigError(f"the public key is no point of ed25519; {_MEND}") from error

    @property
    def text(self) -> str:
        """Return the key as a configuration holds it."""
        return PUBLIC_PREFIX + base64.b64encode(self._raw).decode()

    def has_signed(self, signature: bytes, webhook_id: str, timestamp: str, body: bytes) -> bool:
        """Tell whether `signature` is this key's."""
        try:
            self._key.verify(signature, _signed(webhook_id, timestamp, body))
        except _invalid_signature():
            return False
        return True


def is_signed(
    keys: Sequence[PublicKey], signatures: str, webhook_id: str, timestamp: str, body: bytes
) -> bool:
    """Tell whether one of `keys` has signed; several keys count during a rotation.

    Args:
        keys: all that are valid now.
        signatures: `v1a,<base64>`, several with blanks between; of other versions none counts.
        webhook_id: without a full stop, which would make the signed bytes ambiguous.
        timestamp: the digits as they were sent.
        body: the bytes as they were sent.
    """
    entries = signatures.split(" ") if len(signatures) <= _MAX_SIGNATURES_CHARS else []
    if len(entries) > _MAX_SIGNATURES:
        return False
    for entry in entries:
        scheme, _, encoded = entry.partition(",")
        if scheme != SCHEME:
            continue
        try:
            signature = base64.b64decode(encoded.encode("ascii"), validate=True)
        except (UnicodeEncodeError, binascii.Error):
            continue
        if any(key.has_signed(signature, webhook_id, timestamp, body) for key in keys):
            return True
    return False


def _signed(webhook_id: str, timestamp: str, body: bytes) -> bytes:
    return f"{webhook_id}.{timestamp}.".encode() + body


def _decode(text: str, prefix: str, what: str) -> bytes:
    text = text.strip()
    if not text.startswith(prefix):
        raise ConfigError(f"the {what} key does not begin with {prefix}; {_MEND}")
    try:
        return base64.b64decode(text.removeprefix(prefix).encode(), validate=True)
    except ValueError as error:
        raise ConfigError(f"the {what} key is not base64 after {prefix}; {_MEND}") from error


def _ed25519() -> Any:
    return require("cryptography.hazmat.primitives.asymmetric.ed25519")


def _invalid_signature() -> type[Exception]:
    kind: type[Exception] = require("cryptography.exceptions").InvalidSignature
    return kind
