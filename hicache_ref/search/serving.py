"""Serving: what a scheduler asks of the cache for one request after another."""

from typing import Literal, get_args

from hicache_ref.search.walk import Stepper
from hicache_ref.vocabulary import operations as ops
from hicache_ref.vocabulary.ids import KV_DEVICE
from hicache_ref.vocabulary.keys import Key
from hicache_ref.vocabulary.outcomes import Matched, Refused, Submitted, Took

Place = Literal["device", "host", "miss"]

RID, RECEIPT = "r", "a"


class Server:
    """A scheduler with one request at a time, each block a page of one token. Copies end as soon as they can."""

    def __init__(self, stepper: Stepper) -> None:
        self.stepper = stepper
        self.hits: dict[Place, int] = dict.fromkeys(get_args(Place), 0)
        """Where the pages of the prompts were found."""

    def serve(self, blocks: tuple[int, ...]) -> None:
        """The prompt was looked up, and is cached as far as there was room."""
        if not blocks:
            return
        key = Key(tokens=blocks)
        resident = self._look_up(key)
        self.stepper.step(ops.Lock(receipt=RECEIPT, key=key))
        self._compute(blocks, min(resident, len(blocks) - 1))
        self.stepper.step(ops.Unlock(receipt=RECEIPT))

    def _look_up(self, key: Key) -> int:
        """What there is of the key on host is on device too, if there is room; returns the pages on device."""
        matched = self.stepper.step(ops.MatchPrefix(key=key))
        assert isinstance(matched, Matched)
        device, host = len(matched.device), matched.host_hit
        for place, count in zip(get_args(Place), (device, host, len(key.tokens) - device - host), strict=True):
            self.hits[place] += count
        # A load pins what it needs until it is applied; only then is there something on device for a lock to pin.
        loaded = host and self._ask_twice(ops.LoadBack(key=matched.best))
        self._settle()
        return device + (host if loaded else 0)

    def _compute(self, blocks: tuple[int, ...], start: int) -> None:
        """The prompt's pages from `start` on were computed and inserted, or as many of them as there was room for.

        At least the last page is always computed, for a prompt that is cached whole has to be answered too.
        """
        state = self.stepper.model.state
        count = min(len(blocks) - start, self.stepper.model.free_count(KV_DEVICE) + state.evictable)
        if count <= 0 or not self._ask_twice(ops.TakePages(rid=RID, n=count)):
            return
        key = Key(tokens=blocks[: start + count])
        self.stepper.step(ops.Forward(rid=RID, key=key, start=start))
        self.stepper.step(ops.ForwardDone(rid=RID))
        self.stepper.step(ops.Insert(rid=RID, key=key, start=start))
        self._settle()

    def _ask_twice(self, op: ops.LoadBack | ops.TakePages) -> bool:
        """Whether it was granted, perhaps after what it had to wait for had ended."""
        outcome = self.stepper.step(op)
        if isinstance(outcome, Refused) and outcome.wait_for:
            self._settle()
            outcome = self.stepper.step(op)
        return isinstance(outcome, Submitted | Took)

    def _settle(self) -> None:
        """Every copy has ended well and is applied."""
        running = list(self.stepper.model.state.tickets.values())
        for ticket in running:
            self.stepper.step(ops.CopyDone(ticket=ticket.id))
        if running:
            to_host = sum(ticket.to == "host" for ticket in running)
            self.stepper.step(ops.Poll(backups=to_host, loads=len(running) - to_host))
