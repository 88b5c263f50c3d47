# SPDX-License-Identifier: Apache-2.0
"""The credentials of a mailbox in a file of their own, read again when the mailbox refuses them.

Nothing beside the file counts: what it lacks would be the trainer's, who has another key, and perhaps another
endpoint. It does not know what is in a mailbox.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Final
from urllib.parse import urlsplit

from spotwatch.config_secrets import locate_secret, read_secret
from spotwatch.errors import ConfigError, Denied, ProviderError
from spotwatch.mail.mailbox_client import Fetched, Reader, open_reader

SETTING: Final = "provider.digitalocean.mailbox_credentials_file"
_MEND = (
    f"put a key that may read the mailbox into {SETTING}: it is read again after each refusal, but what "
    "systemd hands over with LoadCredential= only at a start. Else see to the bucket's policy and this clock"
)
_KEYS = {
    "s3": ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"),
    "spaces": ("SPACES_KEY", "SPACES_SECRET"),
}
_ENDPOINTS = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL")
_REGIONS = ("AWS_REGION", "AWS_DEFAULT_REGION")
_ANY_REGION = "us-east-1"


def open_with_file(url: str, name: str, environ: Mapping[str, str]) -> Reader:
    """Return the reader of a mailbox whose credentials are in a file; nothing is opened before its first use.

    Args:
        url: as for `open_reader`.
        name: of the secret file: an absolute path, or one of systemd's credentials.
        environ: where systemd says where those are.

    Raises:
        ConfigError: the file or the address cannot be used.
    """

    def read() -> dict[str, str]:
        return complete(url, _read_variables(name, environ))

    return FileCredentialReader(read, lambda variables: open_reader(url, variables))


def complete(url: str, variables: Mapping[str, str]) -> dict[str, str]:
    """Return all that a bucket needs to be found without a look at anything else.

    Args:
        url: of the mailbox.
        variables: those of the file.

    Raises:
        ConfigError: they are not enough; no value is repeated.
    """
    scheme = urlsplit(url).scheme
    missing = [name for name in _KEYS.get(scheme, ()) if not variables.get(name)]
    if missing:
        raise ConfigError(
            f"{SETTING}: {' and '.join(missing)} not given; for {scheme}:// the file has lines "
            f"{'=…, '.join(_KEYS[scheme])}=…, and nothing is taken from the environment"
        )
    found = dict(variables)
    if scheme != "s3":
        return found
    region = next((found[name] for name in _REGIONS if found.get(name)), "")
    if not any(found.get(name) for name in _ENDPOINTS):
        if not region:
            raise ConfigError(
                f"{SETTING}: neither AWS_REGION nor AWS_ENDPOINT_URL is in it; write the bucket's region, or "
                "the address of a store that is not Amazon's"
            )
        # Said, or else boto3 takes the trainer's from the environment. Amazon's form: AWS General Reference,
        # "Amazon Simple Storage Service endpoints", and "Endpoints and ARNs" of the China regions.
        china = ".cn" if region.startswith("cn-") else ""
        found["AWS_ENDPOINT_URL"] = f"https://s3.{region}.amazonaws.com{china}"
    return found | {"AWS_REGION": region or _ANY_REGION}


class FileCredentialReader:
    """Reads a mailbox with the credentials of a file, and with its new ones once it has others.

    Args:
        read: returns the variables in the file. Blocks. Raises `ConfigError`.
        make: returns a reader that uses them.

    Raises:
        ConfigError: the file cannot be used now.
    """

    def __init__(
        self, read: Callable[[], dict[str, str]], make: Callable[[Mapping[str, str]], Reader]
    ) -> None:
        self._read = read
        self._make = make
        self._variables = read()
        self._reader = make(self._variables)

    async def fetch(self, etags: Mapping[str, str]) -> Mapping[str, Fetched | ProviderError]:
        """Return what became of each object; what was refused is asked for again if the file has changed."""
        found = await self._reader.fetch(etags)
        refused = {key: etags[key] for key, result in found.items() if isinstance(result, Denied)}
        if not refused:
            return found
        try:
            variables = await asyncio.to_thread(self._read)
            is_new = variables != self._variables
            reader = self._make(variables) if is_new else self._reader
        except ConfigError as error:
            problem = str(error)
            return dict(found) | {key: Denied(f"{found[key]}; {problem}", mend=_MEND) for key in refused}
        if is_new:
            await self._reader.close()
            self._variables, self._reader = variables, reader
            found = dict(found) | dict(await reader.fetch(refused))
        return {
            key: Denied(str(result), mend=_MEND) if isinstance(result, Denied) else result
            for key, result in found.items()
        }

    async def close(self) -> None:
        """Close what is open."""
        await self._reader.close()


def _read_variables(name: str, environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables in a secret file of `NAME=VALUE` lines; the text is not repeated in an error."""
    try:
        text = read_secret(locate_secret(name, environ))
    except (ValueError, ConfigError) as error:
        raise ConfigError(f"{SETTING}: {error}") from error
    found = {}
    for line in text.splitlines():
        key, equals, value = line.strip().removeprefix("export ").partition("=")
        if not key or key.startswith("#"):
            continue
        if not equals:
            raise ConfigError(f"{SETTING}: a line is not of the form NAME=VALUE")
        found[key.strip()] = value.strip().strip("\"'")
    return found
