# SPDX-License-Identifier: Apache-2.0
"""The settings of the `digitalocean` provider.

It opens nothing.
"""

from __future__ import annotations

from dataclasses import dataclass

from spotwatch.providers._do_identity import MAX_ID

_MAILBOX_SCHEMES = ("s3://", "spaces://", "file:///", "https://", "http://")


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """Settings of the `digitalocean` provider."""

    endpoint: str = ""
    """Empty: http://169.254.169.254."""
    interval_seconds: float = 1.0
    """How often the inbox is looked at; what arrives is seen at once."""
    timeout_seconds: float = 2.0
    """For one request to the metadata service."""
    droplet_id: int = 0
    """Instead of what the metadata service says; 0: ask."""
    names: tuple[str, ...] = ()
    """Names of this Droplet alone: a signed notice or a proven mail for one of them may stop the trainer."""
    identity_refresh_seconds: float = 300.0
    mailbox: str = ""
    """Where `spotwatch relay` writes: `s3://BUCKET/PREFIX`, `spaces://…`, `file:///DIR` or `https://…`."""
    mailbox_keys: tuple[str, ...] = ()
    """The relay's public keys (`whpk_…`), several for rotation."""
    mailbox_credentials_file: str = ""
    """A secret file with `SPACES_KEY=…` and the like, a line each; empty: the environment's."""
    mailbox_interval_seconds: float = 20.0
    """Between two looks into the mailbox."""

    def __post_init__(self) -> None:
        """Refuse values that cannot work.

        Raises:
            ValueError: says which, and what is wanted.
        """
        if self.endpoint and not self.endpoint.startswith(("http://", "https://")):
            raise ValueError(f"endpoint {self.endpoint!r} has no scheme; write http://HOST[:PORT]")
        for key, value, most in (
            ("interval_seconds", self.interval_seconds, 60),
            ("timeout_seconds", self.timeout_seconds, 30),
            ("identity_refresh_seconds", self.identity_refresh_seconds, 86400),
            ("mailbox_interval_seconds", self.mailbox_interval_seconds, 600),
        ):
            if not 0 < value <= most:
                raise ValueError(f"{key} {value:g} is out of range; use above 0 to {most}")
        if not 0 <= self.droplet_id <= MAX_ID:
            raise ValueError(f"droplet_id {self.droplet_id} is no Droplet's number")
        if not all(name.strip() for name in self.names):
            raise ValueError("names has an empty one; leave it out")
        if self.mailbox and not self.mailbox.startswith(_MAILBOX_SCHEMES):
            raise ValueError(
                f"mailbox {self.mailbox!r} is no address; it begins with {', '.join(_MAILBOX_SCHEMES[:-1])}"
            )
        if bool(self.mailbox) != bool(self.mailbox_keys):
            raise ValueError(
                "mailbox and mailbox_keys belong together; `spotwatch relay --make-key FILE` says the key"
            )
