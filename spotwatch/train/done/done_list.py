# SPDX-License-Identifier: Apache-2.0
"""The batch loop's one object: which items are left, and whether what was done is durable.

How outputs are kept is in the modules beside it. It imports neither torch nor a model.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from datetime import UTC, datetime
from functools import partial
from types import TracebackType
from typing import Self, TypeVar

from spotwatch.errors import ConfigError
from spotwatch.train import arguments, options
from spotwatch.train.attended import AttendedStore
from spotwatch.train.bounded import is_over_within
from spotwatch.train.done.items import warn_of_strangers
from spotwatch.train.done.keeper import Bounds
from spotwatch.train.done.reading import outputs
from spotwatch.train.done.rows import Key
from spotwatch.train.done.shelf import MOST_SHARES
from spotwatch.train.done.teller import Teller
from spotwatch.train.done.terms import StoppedError, Terms
from spotwatch.train.done.work import Work
from spotwatch.train.lease.lease import boot_seconds
from spotwatch.train.lease.owner import Owner
from spotwatch.train.link import Link
from spotwatch.train.store import Store
from spotwatch.train.verdict import DURABLE, FINISHED, NOT_DURABLE, code, ending, phase

log = logging.getLogger("spotwatch.train")
T = TypeVar("T")

_LAST_SECONDS = 30.0
_LEAST_SECONDS = 5.0
_EXIT_SECONDS = 2.0
_INSISTING_SECONDS = 2.0
_RELEASE_SECONDS = 10.0
_CLOSE_SECONDS = 3.0


class DoneList:
    """Go through items so that a machine may be taken away at any moment, and none is lost or done twice.

    Args:
        url: as `Checkpointer` takes it; `SPOTWATCH_CHECKPOINT_URL` replaces it.
        run_id: the same for every worker of this batch; `SPOTWATCH_RUN_ID` replaces it.
        every_items: at most so many are done again after a loss without notice, for each worker.
        every_seconds: no output waits longer than this, however slow items are.
        shares: how many workers can be at work at once, from 1 to 4096; fixed when the list begins. None: as
            many as it has, and 1 for a new one.
        verify: read every output at the start instead of the indexes of their keys; what is damaged is done
            again.
        patience_seconds: how long a store that refuses is asked again at the start.
        give_up_after: this many failed saves in a row raise; None never does.
        lease_seconds: after so long without a sign of life others may have a worker's share; at least 1.
        environ: instead of `os.environ`.

    Raises:
        ConfigError: an argument or variable cannot be used.
    """

    outputs = staticmethod(outputs)

    def __init__(  # noqa: PLR0913 - each is a choice of the user's, with a default, given by name
        self,
        url: str | os.PathLike[str] | Store | None = None,
        *,
        run_id: str | None = None,
        every_items: int = 100,
        every_seconds: float = 60.0,
        shares: int | None = None,
        verify: bool = False,
        patience_seconds: float = 60.0,
        give_up_after: int | None = 10,
        lease_seconds: float = 60.0,
        environ: Mapping[str, str] | None = None,
    ) -> None:
        env = os.environ if environ is None else environ
        self._every_items = arguments.whole("every_items", every_items)
        if shares is not None and arguments.whole("shares", shares) > MOST_SHARES:
            raise ConfigError(f"shares={shares}: at most {MOST_SHARES}")
        self._patience_seconds = arguments.seconds("patience_seconds", patience_seconds, may_be_zero=True)
        store, self.run_id = options.resolve(url, run_id, env)
        self._owns_store = store is not url
        self._store = AttendedStore(store)
        terms = Terms(
            bounds=Bounds(
                self._every_items,
                arguments.seconds("every_seconds", every_seconds),
                None if give_up_after is None else arguments.whole("give_up_after", give_up_after),
            ),
            shares=shares,
            patience_seconds=self._patience_seconds,
            lease_seconds=arguments.seconds("lease_seconds", lease_seconds, least=1.0),
            verify=verify,
            monotonic=boot_seconds,
            sleep=time.sleep,
        )
        self._known: set[Key] = set()
        # Workers of one batch on one machine have a status each.
        local = env.get("LOCAL_RANK", "") or str(os.getpid())
        name = self.run_id if shares in (None, 1) else f"{self.run_id}.{local}"
        self._link = Link(name, env, lambda: len(self._known))
        self._teller = Teller(self._link, store.url)
        self._work = Work(
            *(self._store, Owner.here(), terms, self._teller, self._known),
            attended=self._attended,
            leaving=self._store.hurrying,
            waiting=self._tell_waiting,
        )
        self._exit_code: int | None = None
        self._is_inside = False
        self._is_told = False
        """A stop was in force when the program looked: it may have left off, though the stop is withdrawn."""
        self._is_ahead_told = False
        self._pid = os.getpid()

    @property
    def exit_code(self) -> int:
        """Return 0 all done, 75 stopped and durable, 76 not durable, 77 another worker has taken the list.

        75 too where a stop came before the end of `with`, the loop was left before its end, or an item was
        taken and not added; start the same command again.
        """
        return NOT_DURABLE if self._exit_code is None else self._exit_code

    def __len__(self) -> int:
        """Return how many items are known to be done."""
        return len(self._known)

    def __contains__(self, key: object) -> bool:
        """Tell whether the item of this key is known to be done."""
        return key in self._known

    def todo(
        self, items: Iterable[T] | Callable[[], Iterable[T]], key: Callable[[T], object] | None = None
    ) -> Iterator[T]:
        """Yield each item that is not done, until all are, by this worker or by others.

        An item that is taken and not added is offered again by the next start, and the exit code is 75: to
        pass over one for good, `add(key, None)`. With several shares each item must be added before the next
        is taken.

        Args:
            items: or a function that returns an iterator over them; with several shares they are gone through
                more than once. They should be light: a path rather than an image.
            key: returns an item's key, a text or whole number that stays the same; None: the item is its key.

        Raises:
            StoreError: saving has failed `give_up_after` times in a row.
            ConfigError: a key cannot be used, or items can be gone through only once.
        """
        self._expect_inside("todo")
        for batch in self._work.offer(items, key, 1):
            yield batch[0]

    def batches(
        self,
        items: Iterable[T] | Callable[[], Iterable[T]],
        size: int,
        key: Callable[[T], object] | None = None,
    ) -> Iterator[list[T]]:
        """Yield what is not done in lists of `size` items, the last ones shorter; else as `todo`.

        Raises:
            ConfigError: as `todo`; or `size` is more than `every_items`.
        """
        self._expect_inside("batches")
        if arguments.whole("size", size) > self._every_items:
            raise ConfigError(
                f"size={size}: more than every_items={self._every_items} would be done again after a loss"
            )
        yield from self._work.offer(items, key, size)

    def add(self, key: object, output: object) -> None:
        """Take the output of an item: JSON values, text or bytes; it is durable soon.

        Raises:
            ConfigError: key or output cannot be used, or the key has an output already.
        """
        self._expect_inside("add")
        self._work.add(key, output)
        if self._teller.is_stopping and not self._is_ahead_told:
            self._is_ahead_told = True
            if ahead := self._work.offered.ahead:
                log.warning(
                    "told to stop, and %d items that were taken ahead are not added yet: the program goes on "
                    "until they are. Take fewer ahead, or ask done.poll() before each, to end sooner",
                    ahead,
                )

    def add_many(self, outputs: Iterable[tuple[object, object]]) -> None:
        """Take pairs of key and output, in order; one that is refused raises, and those before it count."""
        for key, output in outputs:
            self.add(key, output)

    def poll(self) -> bool:
        """Tell whether to break off a long item because a stop is in force: the next start does it.

        What is finished is saved meanwhile without it.
        """
        is_stopping = self._teller.is_stopping
        self._is_told = self._is_told or is_stopping
        return is_stopping

    def __enter__(self) -> Self:
        if self._is_inside:
            raise ConfigError("this DoneList's `with` is entered already")
        self._pid = os.getpid()
        self._exit_code = None
        self._is_told = self._is_ahead_told = False
        self._link.begin()
        self._link.heart.tell(phase="resuming", exit_code=None, error="")
        try:
            self._work.open()
        except StoppedError:
            # Nothing is in memory, and what is in the store is durable.
            self._exit_code = DURABLE
            self._teller.answer(self._link.orders.mark())
            self._end("durable")
            raise SystemExit(DURABLE) from None
        except BaseException as error:
            self._exit_code = NOT_DURABLE
            self._end("failed", repr(error))
            raise
        self._teller.begin(len(self))
        self._link.heart.count_from(len(self))
        self._link.heart.tell(phase="training")
        self._is_inside = True
        self._work.listen()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if os.getpid() != self._pid:
            return  # a child that was forked inside the loop: list, status and signals are its parent's
        self._is_inside = False
        # Before the last save: a stop that comes after the program's last look has ended nothing.
        self._is_told = self._is_told or self._link.is_stopping
        seconds = self._seconds_left()
        if kind is KeyboardInterrupt:
            seconds = min(seconds, _INSISTING_SECONDS)
        # Also after an exception: what was added is whole, whatever became of the next item.
        is_durable = self._work.finish(seconds)
        if is_durable and not self._work.taken:
            self._teller.answer(self._link.orders.mark())
        # What leaves after a stop without being an error of the program is how it obeys.
        leaves = kind is None or (self._link.is_stopping and not issubclass(kind, Exception))
        self._exit_code = self._verdict(is_durable=is_durable, failed=not leaves)
        if (left := self._work.offered.left) and kind is None and not self._link.is_stopping:
            log.warning(
                "%d items were offered and not added: the next start offers them again; to pass over one for "
                "good, add(key, None)",
                left,
            )
        if self._exit_code == FINISHED and self._work.offered.number:
            warn_of_strangers(self._work.offered.seen, len(self))
        self._end(phase(self._exit_code), "" if error is None else repr(error))

    def _verdict(self, *, is_durable: bool, failed: bool) -> int:
        # Told to stop, the program may have left off between two loops, which nothing here can see.
        is_finished = self._work.offered.is_all_done and not self._is_told
        return code(taken=self._work.taken, durable=is_durable and not failed, finished=is_finished)

    def _seconds_left(self) -> float:
        deadline = self._link.orders.deadline
        if deadline is None:
            return _LAST_SECONDS
        # However late it is: one try costs nothing that is not lost without it.
        return max((deadline - datetime.now(UTC)).total_seconds() - _EXIT_SECONDS, _LEAST_SECONDS)

    def _end(self, last: str, error: str = "") -> None:
        self._teller.say_last()
        ended = ending(self.exit_code)
        if not is_over_within(_RELEASE_SECONDS, partial(self._work.close, ended)):
            log.warning("the store does not answer: others wait for our lease to expire")
        if self._owns_store and not is_over_within(_CLOSE_SECONDS, self._store.close):
            log.warning("the store is still at work: it ends with this process")
        told = self._link.is_stopping and self.exit_code in (DURABLE, NOT_DURABLE)
        self._link.end(last, error, leaving=told, exit_code=self.exit_code)

    def _attended(self) -> AbstractContextManager[Callable[[], None]]:
        return self._store.attending(self._leave_if_told, self._patience_seconds)

    def _leave_if_told(self) -> None:
        if self._link.is_stopping:
            raise StoppedError
        if self._is_inside and self._teller.is_asked and not self._work.unsaved:
            self._teller.answer(self._teller.mark())  # it waits, and has nothing to save

    def _tell_waiting(self, why: str) -> None:
        self._link.heart.tell(phase="waiting" if why else "training", error=why[:500])

    def _expect_inside(self, call: str) -> None:
        if os.getpid() != self._pid:
            raise ConfigError(
                f"{call}() in a process that was forked inside `with`: nothing would come of it; return the "
                "output to the process that has entered the DoneList, and add it there"
            )
        if not self._is_inside:
            raise ConfigError(f"{call}() outside `with`: write `with done:` around the loop")
