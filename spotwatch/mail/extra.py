# SPDX-License-Identifier: Apache-2.0
"""What `spotwatch[mail]` brings, imported where it is used, and what to do when it is not there.

It does not know what a module is for.
"""

from __future__ import annotations

import importlib
from typing import Any

from spotwatch.errors import ConfigError


def require(module: str) -> Any:
    """Return the module of that name (dkim, dns.message, cryptography.exceptions).

    Raises:
        ConfigError: it is not installed.
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise ConfigError(
            f"mail needs {module.partition('.')[0]}; pip install 'spotwatch[mail]', or in a container take "
            "the image built with --target full"
        ) from error
