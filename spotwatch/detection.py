# SPDX-License-Identifier: Apache-2.0
"""Which cloud is this: every provider that can tell is asked at once, for two seconds.

It knows no cloud: each provider looks at the machine's DMI first and sends at most one request.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from spotwatch.providers import Provider

LIMIT_SECONDS = 2.0


async def detect(candidates: Sequence[Provider], *, say: Callable[[str], None]) -> list[Provider]:
    """Return those of `candidates` whose cloud this machine is on, within two seconds.

    Args:
        candidates: not entered; each is entered only for its question.
        say: takes a line for each one that failed in a way of its own.
    """

    async def is_here(provider: Provider) -> bool:
        try:
            async with asyncio.timeout(LIMIT_SECONDS), provider:
                return await provider.detect()
        except TimeoutError:
            return False
        except Exception as error:  # noqa: BLE001 - one provider's fault must not hide another's cloud
            say(f"{provider.name}: detection failed: {type(error).__name__}: {error}")
            return False

    found = await asyncio.gather(*(is_here(provider) for provider in candidates))
    return [provider for provider, here in zip(candidates, found, strict=True) if here]
