# SPDX-License-Identifier: Apache-2.0
"""Which version of a library is here, and whether it is one that an integration was made for.

An older one is refused, for what is hooked into is not there yet. A newer one only warns: each integration
checks by itself that what it hooks into is still there.
"""

from __future__ import annotations

import logging
from importlib.metadata import PackageNotFoundError, version

from spotwatch.errors import ConfigError

log = logging.getLogger("spotwatch.train")


def require(package: str, least: str, tested: str) -> None:
    """Refuse a library that is missing or too old, and warn of one that is newer than what was tested.

    Args:
        package: as pip calls it.
        least: the oldest version that fits.
        tested: the newest version that was tested; what differs from it after its second number is no other.

    Raises:
        ConfigError: it does not fit; the message says which do.
    """
    from packaging.version import Version  # noqa: PLC0415 - each of these libraries brings it; the trainer may not

    try:
        found = Version(version(package))
    except PackageNotFoundError as error:
        raise ConfigError(f"{package} is not installed: pip install '{package}>={least}'") from error
    if found < Version(least):
        raise ConfigError(
            f"{package} {found} is too old: pip install '{package}>={least}' ({tested} is tested)"
        )
    if found.release[:2] > Version(tested).release[:2]:
        log.warning("%s %s is newer than what was tested (%s)", package, found, tested)
