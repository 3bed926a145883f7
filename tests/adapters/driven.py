"""What the tests of the adapter for SGLang's core share: keys, profiles, and a short way to say operations."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hicache_ref.adapters.sglang_rust.child import SglangRust
from hicache_ref.adapters.sglang_rust.observe import ObservedCaller
from hicache_ref.vocabulary.adapter import Adapter
from hicache_ref.vocabulary.keys import Key
from hicache_ref.vocabulary.observation import Observation
from hicache_ref.vocabulary.operations import CopyDone, Forward, ForwardDone, Insert, Operation, Poll, TakePages
from hicache_ref.vocabulary.outcomes import Done, Outcome, Polled
from hicache_ref.vocabulary.profile import RULES, Profile, Sizes


def key(*tokens: int, extra: str | None = None) -> Key:
    """A key."""
    return Key(tokens=tokens, extra=extra)


def profile(sizes: Sizes | None = None, *, bigram: bool = False, **rules: Any) -> Profile:
    """The core's own rules but for those given, with six pages on both tiers unless sizes are given."""
    changed = RULES["sglang-0.5.23"].model_copy(update=rules)
    return Profile(rules=changed, sizes=sizes or Sizes(), bigram=bigram, name="here")


class Driven:
    """An adapter that was reset, and the shortest way to say operations."""

    def __init__(self, adapter: Adapter) -> None:
        self.adapter = adapter

    @classmethod
    def over(cls, file: Path, given: Profile, kind: type[ObservedCaller] = ObservedCaller) -> "Driven":
        """A new core that follows this profile, its caller of this kind."""
        adapter = SglangRust(file, kind)
        adapter.reset(given)
        return cls(adapter)

    def __call__(self, operation: Operation) -> Outcome:
        return self.adapter.apply(operation)

    def see(self) -> Observation:
        """All that is seen."""
        return self.adapter.observe("bytes")

    def insert(self, *tokens: int, start: int = 0, pages: int, extra: str | None = None, rid: str = "r") -> Outcome:
        """The outcome of an insert, its request begun and its pass ended before."""
        whole = key(*tokens, extra=extra)
        for operation in (
            TakePages(rid=rid, n=pages),
            Forward(rid=rid, key=whole, start=start),
            ForwardDone(rid=rid),
        ):
            assert self(operation).kind in ("took", "done")
        return self(Insert(rid=rid, key=whole, start=start))

    def back_up_to_the_end(self, tickets: Sequence[str]) -> None:
        """These copies have ended and were applied."""
        for ticket in tickets:
            assert Done() == self(CopyDone(ticket=ticket))
        assert Polled(backups=tuple(tickets)) == self(Poll(backups=len(tickets)))

    def tree(self) -> dict[tuple[int, ...], tuple[object, ...]]:
        """Each node's own tokens -> namespace, device pages, host pages, locked."""
        return {each.tokens: (each.extra, each.device, each.host, each.locked) for each in self.see().segments}
