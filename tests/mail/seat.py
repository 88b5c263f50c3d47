# SPDX-License-Identifier: Apache-2.0
"""A mailbox in memory and the Droplet that polls it.

It holds no test.
"""

from __future__ import annotations

from spotwatch.mail.mailbox import HEARTBEAT_KEY, Heartbeat, Letter
from spotwatch.mail.mailbox_form import write_heartbeat, write_letters
from spotwatch.providers._do_mailbox import DropletMailbox, Whose
from spotwatch.testing import EPOCH, FakeClock
from tests.mail.letters import HOUR, KEY, OURS, MemoryObjects


class Seat:
    """A mailbox in memory and the Droplet that polls it."""

    def __init__(self, *, whose: Whose | None = Whose(droplet_id=OURS, names=("spot-1",))) -> None:  # noqa: B008 - frozen
        self.objects = MemoryObjects()
        self.clock = FakeClock()
        self.whose = whose
        self.chance = 0.0
        self.mailbox = self.opened()
        self.beat()

    def opened(self) -> DropletMailbox:
        """Return a mailbox as a daemon that has just started sees it."""
        return DropletMailbox(
            self.objects, [KEY.public], self.clock, whose=lambda: self.whose, chance=lambda: self.chance
        )

    def beat(self, *, minutes: float = 0.0) -> None:
        """Let the relay live at that time."""
        at = EPOCH + HOUR * (minutes / 60)
        self.objects.objects[HEARTBEAT_KEY] = write_heartbeat(Heartbeat(at=at, interval_seconds=60.0), KEY)

    def put(self, *letters: Letter) -> None:
        """Let the relay write what is in force for one address."""
        self.objects.objects[letters[0].to.key] = write_letters(letters, KEY, now=EPOCH)
