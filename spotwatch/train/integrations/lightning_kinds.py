# SPDX-License-Identifier: Apache-2.0
"""What kind of thing of Lightning's something is, by name: it is in two packages, and neither is needed here.

It imports none.
"""

from __future__ import annotations


def is_a(thing: object, name: str) -> bool:
    """Tell whether something is of a class of this name, or of one made from it."""
    return any(kind.__name__ == name for kind in type(thing).__mro__)
