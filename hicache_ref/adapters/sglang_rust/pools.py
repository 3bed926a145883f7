"""Page pools as the caller keeps them: the core never allocates, it only gives back what it was given."""

from collections.abc import Iterable
from typing import NamedTuple

from hicache_ref.adapters.sglang_hiradix.pages import Stamps
from hicache_ref.adapters.sglang_rust.memory import Memory
from hicache_ref.vocabulary.ids import PageHash, Pages, RequestId


class Pass(NamedTuple):
    """A running forward pass, the device pages that it touches, and the hash of the prefix that it ends."""

    reads: frozenset[int]
    writes: frozenset[int]
    end: PageHash


class PagePool:
    """Free pages, the one freed last taken first, and what all pages hold."""

    def __init__(self, count: int, stamps: Stamps) -> None:
        self.free = list(range(count))
        self.memory = Memory(count, stamps)

    def take(self, count: int) -> Pages:
        """`count` pages that are free no more and hold nothing; the caller has made sure that there are as many."""
        pages = tuple(self.free[len(self.free) - count :])
        del self.free[len(self.free) - count :]
        self.memory.erase(pages)
        return pages

    def give_up(self, pages: Iterable[int]) -> None:
        """The pages are free."""
        self.free.extend(pages)


class DevicePool(PagePool):
    """Device pages. A page given up under a running forward pass is held by that pass until it has ended.

    The core knows nothing of passes: upstream, the order of the CUDA stream is what protects such a page. One that is
    given up twice is free and held at once, as it is twice in upstream's free list.
    """

    def __init__(self, count: int, stamps: Stamps) -> None:
        super().__init__(count, stamps)
        self.passes: dict[RequestId, Pass] = {}
        self.held: dict[int, RequestId] = {}

    def give_up(self, pages: Iterable[int]) -> None:
        """Each page is free, or held by the pass started last of those that touch it, if not held already."""
        if not self.passes:
            self.free.extend(pages)
            return
        for page in pages:
            touching = [rid for rid, each in self.passes.items() if page in each.reads or page in each.writes]
            if touching and page not in self.held:
                self.held[page] = touching[-1]
            else:
                self.free.append(page)

    def end_pass(self, rid: RequestId) -> None:
        """The pass touches nothing more; what it held is free, or held by another pass."""
        del self.passes[rid]
        mine = [page for page, holder in self.held.items() if holder == rid]
        for page in mine:
            del self.held[page]
        self.give_up(mine)

    def holders(self, pages: Iterable[int]) -> tuple[str, ...]:
        """The names of the passes that touch one of these pages, which were given up (HC-EVICT-11)."""
        held = self.held.keys() & set(pages)
        touching = [rid for rid, each in self.passes.items() if held.intersection((*each.reads, *each.writes))]
        return tuple(sorted(map(pass_name, touching)))


class StatePool(PagePool):
    """State slots on device. A slot given up under what touches it is held by that until it has ended."""

    def __init__(self, count: int, stamps: Stamps) -> None:
        super().__init__(count, stamps)
        self.touched: dict[str, Pages] = {}
        """Running passes and copies by name -> the slots that they change."""

        self.held: dict[int, str] = {}

    def give_up(self, pages: Iterable[int]) -> None:
        """Each slot is free, or held by the last that was begun of those that touch it, if not held already."""
        for slot in pages:
            touching = [name for name, slots in self.touched.items() if slot in slots]
            if touching and slot not in self.held:
                self.held[slot] = touching[-1]
            else:
                self.free.append(slot)

    def holders(self, slots: Iterable[int]) -> tuple[str, ...]:
        """The names of what touches one of these slots, which were given up (HC-EVICT-11)."""
        held = self.held.keys() & set(slots)
        return tuple(sorted(name for name, touched in self.touched.items() if held.intersection(touched)))

    def end(self, name: str) -> None:
        """The pass or copy touches nothing more; what it held is free, or held by another."""
        self.touched.pop(name, None)
        mine = [slot for slot, holder in self.held.items() if holder == name]
        for slot in mine:
            del self.held[slot]
        self.give_up(mine)


def pass_name(rid: RequestId) -> str:
    """What the forward pass of this request is called."""
    return f"f:{rid}"
