# SPDX-License-Identifier: Apache-2.0
"""The keys of one list are of one kind, texts or whole numbers: 7 is not "7", and all would be done again.

It keeps one of them as an example, and no list.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from spotwatch.errors import ConfigError
from spotwatch.train.done.rows import MOST_KEY_CHARACTERS, Key, checked_key, shown

KeyOf = Callable[[Any], object]
_KINDS = {str: "text", int: "a whole number"}


class OneKind:
    """Checks keys, and that they are of the kind of those before."""

    def __init__(self) -> None:
        self.example: Key | None = None
        """Any key of the list; None: there is none yet."""

    def checked(self, key: object) -> Key:
        """Return a key as a text or an int.

        Raises:
            ConfigError: it cannot be one, or is of the other kind.
        """
        # The usual ones quickly: whoever goes through items asks for each of them.
        if type(key) is not str or not 0 < len(key) <= MOST_KEY_CHARACTERS or not key.isascii():
            key = checked_key(key)
        if type(key) is not type(self.example):
            if self.example is not None:
                raise ConfigError(
                    f"key {shown(key)} is {_KINDS[type(key)]}, but the keys of this list are "
                    f"{_KINDS[type(self.example)]}, such as {shown(self.example)}: make it one, or take "
                    "another run_id"
                )
            self.example = key
        return key


def expect_function(key_of: object) -> None:
    """Refuse what cannot give an item's key.

    Raises:
        ConfigError: it is neither None nor a function.
    """
    if key_of is not None and not callable(key_of):
        raise ConfigError(
            f"key={shown(key_of)}: wants a function that returns an item's key, such as "
            'key=lambda item: item["id"]'
        )
