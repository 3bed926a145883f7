"""Planted faults: one wrong thing each in how the caller treats the core, to show that the oracle finds such things.

They are faults of the adapter, chosen with `--option plant=NAME`. The core itself is never changed.
"""

from typing import Any

from hicache_ref.adapters.sglang_rust.books import Copy
from hicache_ref.adapters.sglang_rust.observe import ObservedCaller
from hicache_ref.vocabulary.events import BlockRemoved, BlockStored, Event
from hicache_ref.vocabulary.ids import Pages
from hicache_ref.vocabulary.observation import IssuedCopy


class CommitDropped(ObservedCaller):
    """The core is never told the host pages of a backup."""

    def commit_backup(self, node: int, pages: Pages, states: Pages) -> None:
        """Nothing has happened."""


class AckNeverSent(ObservedCaller):
    """The core never hears that a backup has ended."""

    def acknowledge(self, copy: Copy) -> None:
        """Nothing has happened."""


class LockLeaked(ObservedCaller):
    """Every third unlock is forgotten."""

    unlocks = 0

    def unlock(self, receipt: Any) -> None:
        """The lock is undone, or stays for ever."""
        self.unlocks += 1
        if self.unlocks % 3:
            super().unlock(receipt)


class SlotsSwappedLoad(ObservedCaller):
    """The pages of a load are filled in one order and told to the core in the other."""

    def load_target(self, pages: Pages) -> Pages:
        """The device pages, last first."""
        return pages[::-1]


class SlotsSwappedBackup(ObservedCaller):
    """The pages of a backup are filled in one order and told to the core in the other."""

    def backup_target(self, pages: Pages) -> Pages:
        """The host pages, last first."""
        return pages[::-1]


class WrongPageCopied(ObservedCaller):
    """Of each backup the last page is read beside where it is."""

    def move(self, copy: IssuedCopy) -> None:
        """The bytes of one page are those of another."""
        if copy.to == "host" and copy.source:
            beside = (copy.source[-1] + 1) % self.device.memory.count
            copy = copy.model_copy(update={"source": (*copy.source[:-1], beside)})
        super().move(copy)


class WrongMedium(ObservedCaller):
    """What happens on host is reported as if it were on the device."""

    def reported(self, event: Event) -> Event:
        """The event, on the medium GPU."""
        if isinstance(event, BlockStored | BlockRemoved):
            return event.model_copy(update={"medium": "GPU"})
        return event


class FreedPageKept(ObservedCaller):
    """Of the host pages that an eviction frees, the last one is lost."""

    def free_host(self, pages: Pages) -> None:
        """All but one of the pages are free."""
        super().free_host(pages[:-1])


class FreedTwiceUnderPass(ObservedCaller):
    """What an eviction frees under a pass that touches it is freed once more."""

    def accept(self, result: Any) -> list[int]:
        """The pages that a pass holds are given up again."""
        device = super().accept(result)
        self.device.give_up([page for page in device if page in self.device.held])
        return device


class ResplitIgnored(ObservedCaller):
    """A backup acknowledges the node it was submitted for, also if that was split meanwhile."""

    def replace_published(self, ack: int | None, old: int, halves: list[int]) -> None:
        """Nothing has happened."""


PLANTS: dict[str, type[ObservedCaller]] = {
    "commit-dropped": CommitDropped,
    "ack-never-sent": AckNeverSent,
    "lock-leaked": LockLeaked,
    "slots-swapped-load": SlotsSwappedLoad,
    "slots-swapped-backup": SlotsSwappedBackup,
    "wrong-page-copied": WrongPageCopied,
    "wrong-medium": WrongMedium,
    "freed-page-kept": FreedPageKept,
    "freed-twice-under-pass": FreedTwiceUnderPass,
    "resplit-ignored": ResplitIgnored,
}
