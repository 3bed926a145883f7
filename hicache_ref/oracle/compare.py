"""Comparison of model and implementation, up to a renaming of pages that persists while a page is held."""

from collections import Counter
from collections.abc import Collection, Iterator

from hicache_ref.model import Step
from hicache_ref.model.records import PrefetchQueued, PrefetchReading
from hicache_ref.model.state import FREE, Node, State
from hicache_ref.oracle import differing as say
from hicache_ref.oracle.content import Content, is_read_for_nobody
from hicache_ref.oracle.differing import Difference
from hicache_ref.oracle.evicted import Residency, Unlike, judge_victims, where
from hicache_ref.oracle.seen import CALLED, Seen
from hicache_ref.search.finding import Differs, direction_of
from hicache_ref.vocabulary.events import Event
from hicache_ref.vocabulary.hashing import chain, namespace_seed
from hicache_ref.vocabulary.ids import (
    KV,
    KV_DEVICE,
    KV_HOST,
    KV_POOLS,
    ROOT,
    STATE,
    STATE_DEVICE,
    STATE_HOST,
    TIER,
    PageHash,
    Pages,
    PoolName,
)
from hicache_ref.vocabulary.keys import Key
from hicache_ref.vocabulary.observation import Counts
from hicache_ref.vocabulary.outcomes import Evicted, Inserted, Matched, Outcome, Took
from hicache_ref.vocabulary.profile import Profile

Pairs = dict[int, int]
"""Model page -> page of the implementation."""

SETS = frozenset({"lost", "pending", "wait_for"})
"""Fields of outcomes that name things in no order, each once."""

COUNTERS = frozenset({"prefetched", "backed_up", "revoked_pages", "aborted"})
"""Fields of outcomes by which a step raises the counters of storage."""

MAY_BE_UNTOLD = frozenset({"given_up", "evictable", "state_host_hit", "wait_for"}) | COUNTERS
"""Fields of an outcome that an implementation may leave out, as None."""


def held_by_nodes(state: State, pool_name: PoolName) -> Iterator[tuple[PageHash, int]]:
    """Page hash and page of everything that nodes hold in the pool."""
    for node in state.nodes.values():
        if node.id != ROOT and pool_name in node.at:
            hashes = node.hashes if pool_name in KV_POOLS else node.hashes[-1:]
            yield from zip(hashes, node.at[pool_name], strict=True)


class Comparison:
    """What was equal so far, as a renaming of pages."""

    def __init__(self, profile: Profile) -> None:
        self.page_size = profile.sizes.page_size
        self.bigram = profile.bigram
        self.tree = True
        """Whether the last observation shows where nodes end."""

        self.pools = tuple(profile.pool_sizes)
        self.pairs: dict[PoolName, Pairs] = {pool_name: {} for pool_name in self.pools}
        self.residents: Residency = {pool_name: {} for pool_name in self.pools}
        """What the last observation shows: page hash -> page, per pool."""

    def renamed(self, pool_name: PoolName, page: int) -> int:
        """The implementation's name of a model page; -1 if it never had one."""
        return self.pairs[pool_name].get(page, -1)

    def residency(self, state: State, view: Seen, ours: Step) -> None:
        """Each page is on the same tiers on both sides (HC-CONF-07), and nodes end at the same keys (HC-CONF-08)."""
        before, self.residents = self.residents, view.pages
        self._dead_ends(state, view, ours)
        unlike: Unlike = {}
        for pool_name in self.pools:
            expected = dict(held_by_nodes(state, pool_name))
            theirs = view.pages[pool_name]
            if expected.keys() != theirs.keys():
                unlike[pool_name] = (set(expected), set(theirs))
        if unlike:
            if ours.victims or isinstance(ours.outcome, Evicted):
                self._judge_inner_nodes(state, unlike, before)
            names = self.names(state) | view.names
            judge_victims(ours.victims, unlike, before, view.pages, names)
            self._explain(unlike, names)
        if not self.tree:
            return
        ends = {node.hashes[-1] for node in state.nodes.values() if node.id != ROOT}
        if ends != view.ends.keys():
            names = self.names(state) | view.names
            parts = [
                f"{text}: {', '.join(sorted(names[end] for end in found))}"
                for text, found in (("not expected", view.ends.keys() - ends), ("missing", ends - view.ends.keys()))
                if found
            ]
            differs = Differs(kind="ends", direction=direction_of(view.ends.keys() - ends, ends - view.ends.keys()))
            raise Difference("HC-CONF-08", f"nodes end at other keys; {'; '.join(parts)}", differs)
        self._locks(state, view)

    def _dead_ends(self, state: State, view: Seen, ours: Step) -> None:
        """No leaf that nothing pins lacks a state on every tier: no match could end there (HC-STATE-07)."""
        if STATE_DEVICE not in self.pools or not self.tree:
            return
        kept = {node.hashes[-1] for node in state.nodes.values() if node.id != ROOT}
        inner = {id(above) for above in view.above.values()}
        for end, segment in view.ends.items():
            if end not in kept and id(segment) not in inner and segment.device_state is segment.host_state is None:
                text = f"leaf {view.names[end]} has no state on any tier, and nothing pins it"
                raise Difference("HC-STATE-07", text, say.dead_end(segment, end, ours.victims))

    def _locks(self, state: State, view: Seen) -> None:
        for node in state.nodes.values():
            if node.id == ROOT:
                continue
            locked = view.ends[node.hashes[-1]].locked
            if locked is not None and locked != bool(node.locks[KV]):
                text = "is locked though nothing pins it" if locked else "is not locked though something pins it"
                raise Difference(
                    "HC-LOCK-01", f"node {view.names[node.hashes[-1]]} {text}", say.lock(KV_DEVICE, locked)
                )
            pinned = view.ends[node.hashes[-1]].state_locked
            if pinned is not None and STATE_DEVICE in node.at and pinned != bool(node.locks[STATE]):
                text = "is locked though nothing pins it" if pinned else "is not locked though something pins it"
                raise Difference("HC-LOCK-01", f"the state of node {view.names[node.hashes[-1]]} {text}",
                                 say.lock(STATE_DEVICE, pinned))  # fmt: skip

    def names(self, state: State) -> dict[PageHash, str]:
        """Page hash -> the key it ends, for texts, of everything that the model caches."""
        texts: dict[int, str] = {}
        names: dict[PageHash, str] = {}
        for node in state.nodes.values():
            path = [node]
            while path[-1].parent in state.nodes and path[-1].parent not in texts:
                path.append(state.nodes[path[-1].parent])
            for each in reversed(path):
                text = texts.get(each.parent, "")
                for page, digest in zip(each.key, each.hashes, strict=True):
                    text += ("." if text else "") + ".".join(map(str, page[: self.page_size]))
                    names[digest] = text if each.extra is None else f"{each.extra}/{text}"
                texts[each.id] = text
        return names

    def _judge_inner_nodes(self, state: State, unlike: Unlike, before: Residency) -> None:
        """No node is gone that is no leaf of its tier, while what hung below it stays, there or moved up (HC-EVICT-01).

        Where all below it is gone too, it may have been a leaf when it went: too much was evicted, from the leaves up.
        """
        for pool_name in KV_POOLS:
            expected, theirs = unlike.get(pool_name, (set(), set()))
            for node in state.nodes.values():
                above = state.nodes.get(node.parent)
                if above is None or above.id == ROOT or pool_name not in node.at:
                    continue
                is_gone = expected.issuperset(above.hashes) and theirs.isdisjoint(above.hashes)
                # What was there before the step has not moved up in it.
                below = {node.hashes[0]} | ({self._moved_up(state, node, above)} - before[pool_name].keys())
                if is_gone and not theirs.isdisjoint(below):
                    names = self.names(state)
                    text = f"{where(pool_name)} inner node {names[above.hashes[-1]]} is gone"
                    differs = Differs(kind="residency", pool=pool_name, direction="missing", what="inner node")
                    raise Difference("HC-EVICT-01", f"{text}; below it was {names[node.hashes[-1]]}", differs)

    def _moved_up(self, state: State, node: Node, above: Node) -> PageHash:
        """The hash that the node's first page has where the node hangs in the place of that above it."""
        top = state.nodes[above.parent]
        prior = namespace_seed(node.extra) if top.id == ROOT else top.hashes[-1]
        return chain(node.key[:1], prior, self.bigram)[0]

    @staticmethod
    def _explain(unlike: Unlike, names: dict[PageHash, str]) -> None:
        """Says which page is where it should not be."""
        name = names.get
        pool_name, (expected, theirs) = next(iter(unlike.items()))
        tier = where(pool_name)
        more = ", ".join(sorted(name(d, d[:8]) for d in theirs - expected))
        less = ", ".join(sorted(name(d, d[:8]) for d in expected - theirs))
        parts = [f"{text} on {tier}: {keys}" for text, keys in (("not expected", more), ("missing", less)) if keys]
        raise Difference(
            "HC-CONF-07",
            "; ".join(parts),
            Differs(kind="residency", pool=pool_name, direction=direction_of(more, less)),
        )

    def counts(self, state: State, theirs: Counts) -> None:
        """Sizes are equal where they are shown (HC-PAGE-09)."""
        ours = Counts(
            free_device=len(state.pools[KV_DEVICE].free),
            free_host=len(state.pools[KV_HOST].free),
            evictable=state.evictable,
            protected=state.protected,
        )
        for name, expected in ours:
            actual = getattr(theirs, name)
            if actual is not None and actual != expected:
                differs = Differs(kind="count", what=name, direction=direction_of(actual > expected, actual < expected))
                raise Difference("HC-PAGE-09", f"{name} is {actual} pages, expected {expected}", differs)

    def rename(self, state: State, view: Seen, taken: Collection[tuple[PoolName, int]]) -> None:
        """The pages held on both sides are paired; a page that stayed held keeps its partner (HC-CONF-09)."""
        for pool_name in self.pools:
            known = self.pairs[pool_name]
            pairs = {page: view.pages[pool_name][digest] for digest, page in held_by_nodes(state, pool_name)}
            if pool_name == KV_DEVICE:
                self._pair_requests(state, view, pairs)
            elif pool_name == KV_HOST:
                self._pair_prefetches(state, view, pairs)
            elif pool_name == STATE_DEVICE:
                self._pair_states(state, view, pairs)
            else:
                self._pair_fetched_states(state, view, pairs)
            for page, theirs in pairs.items():
                if known.get(page, theirs) != theirs and (pool_name, page) not in taken:
                    what = CALLED[pool_name]
                    text = f"{what} {known[page]} was exchanged for {theirs} while held"
                    raise Difference("HC-CONF-09", text, Differs(kind="exchange", pool=pool_name))
            owner = state.pools[pool_name].owner
            kept = {page: theirs for page, theirs in known.items() if owner[page][0] == "op"}
            self.pairs[pool_name] = kept | pairs

    def _pair_requests(self, state: State, view: Seen, pairs: Pairs) -> None:
        if view.requests.keys() != state.requests.keys():
            text = f"requests {sorted(view.requests)} hold pages, expected {sorted(state.requests)}"
            differs = say.holders(KV_DEVICE, len(view.requests), len(state.requests), "requests")
            raise Difference("HC-CONF-07", text, differs)
        for request in state.requests.values():
            theirs = view.requests[request.id]
            if len(theirs) != len(request.pages):
                text = f"request {request.id} holds {len(theirs)} pages, expected {len(request.pages)}"
                raise Difference("HC-CONF-07", text, say.holders(KV_DEVICE, len(theirs), len(request.pages), "request"))
            pairs.update(zip(request.pages, theirs, strict=True))

    def _pair_states(self, state: State, view: Seen, pairs: Pairs) -> None:
        for request in state.requests.values():
            theirs = view.states[STATE_DEVICE].get(request.id, ())
            if len(theirs) != len(request.state):
                text = f"request {request.id} holds {len(theirs)} state slots, expected {len(request.state)}"
                raise Difference(
                    "HC-CONF-07", text, say.holders(STATE_DEVICE, len(theirs), len(request.state), "request")
                )
            pairs.update(zip(request.state, theirs, strict=True))

    def _pair_prefetches(self, state: State, view: Seen, pairs: Pairs) -> None:
        """An open prefetch has as many host pages on both sides (HC-PREF-01)."""
        storage = state.storage
        for name in storage.open.values():
            ours, theirs = storage.records[name].pages, view.prefetches.get(name, ())
            if len(ours) != len(theirs):
                text = f"prefetch {name} has {len(theirs)} host pages, expected {len(ours)}"
                raise Difference("HC-PREF-01", text, say.holders(KV_HOST, len(theirs), len(ours), "prefetch"))
            pairs.update(zip(ours, theirs, strict=True))

    def _pair_fetched_states(self, state: State, view: Seen, pairs: Pairs) -> None:
        storage = state.storage
        for name in storage.open.values():
            ours, theirs = storage.records[name].states, view.states[STATE_HOST].get(name, ())
            if len(ours) != len(theirs):
                text = f"prefetch {name} has {len(theirs)} state slots, expected {len(ours)}"
                raise Difference("HC-PREF-01", text, say.holders(STATE_HOST, len(theirs), len(ours), "prefetch"))
            pairs.update(zip(ours, theirs, strict=True))

    def told_to_stop(self, state: State, theirs: tuple[str, ...] | None) -> None:
        """Queries and reads that run for nobody were told to stop, and no others (HC-PREF-22)."""
        ours = sorted(
            record.id
            for record in state.storage.records.values()
            if isinstance(record, PrefetchQueued | PrefetchReading) and record.cancelled
        )
        if theirs is not None and sorted(theirs) != ours:
            raise Difference(
                "HC-PREF-22", f"storage work told to stop: {', '.join(sorted(theirs))}; expected: {', '.join(ours)}",
                Differs(kind="stop", direction=direction_of(set(theirs) - set(ours), set(ours) - set(theirs))),
            )  # fmt: skip

    def learn(self, state: State, ours: Outcome, theirs: Outcome, taken: Collection[tuple[PoolName, int]]) -> None:
        """Without a look at the pools, a device page is paired where it is first told (HC-PAGE-01)."""
        for pool_name in self.pools:
            owner, known = state.pools[pool_name].owner, self.pairs[pool_name]
            self.pairs[pool_name] = {p: q for p, q in known.items() if owner[p] != FREE and (pool_name, p) not in taken}
        pairs = self.pairs[KV_DEVICE]
        for page, partner in zip(_told(ours), _told(theirs), strict=False):
            if page not in pairs and partner in pairs.values():
                differs = Differs(kind="holders", pool=KV_DEVICE, direction="not expected", what="told twice")
                raise Difference("HC-PAGE-01", f"device page {partner} was told to two holders", differs)
            pairs.setdefault(page, partner)

    def outcome(self, ours: Outcome, theirs: Outcome) -> None:
        """The caller is told the same, pages up to renaming; why something was refused is not compared (HC-CONF-02)."""
        for name in type(ours).model_fields:
            expected, actual = getattr(ours, name), getattr(theirs, name)
            untold = name in MAY_BE_UNTOLD and actual is None
            if name == "why" or untold or (name == "given_back" and isinstance(ours, Inserted)):
                expected, actual = None, None
            elif isinstance(ours, Matched | Took) and name in ("device", "pages"):
                expected = tuple(self.renamed(KV_DEVICE, page) for page in expected)
            elif name in SETS:
                expected, actual = tuple(sorted(set(expected))), tuple(sorted(set(actual)))
            if expected != actual:
                text = f"{ours.kind}.{name} is {_told_as(actual)}, expected {_told_as(expected)}"
                raise Difference("HC-CONF-02", text, say.field(f"{ours.kind}.{name}", expected, actual))
        if isinstance(ours, Inserted) and isinstance(theirs, Inserted):
            self._given_back(ours, theirs)

    def _given_back(self, ours: Inserted, theirs: Inserted) -> None:
        if len(ours.given_back) != len(theirs.given_back):
            text = f"insert gave back pages {theirs.given_back}, expected {len(ours.given_back)} pages"
            direction = direction_of(
                len(theirs.given_back) > len(ours.given_back), len(theirs.given_back) < len(ours.given_back)
            )
            raise Difference(
                "HC-INSERT-02", text, Differs(kind="field", what="inserted.given_back", direction=direction)
            )

    def events(self, ours: tuple[Event, ...], theirs: tuple[Event, ...] | None) -> None:
        """The same events were published in this step, in any order (HC-EVENT-06)."""
        if theirs is None or ours == theirs:
            return
        more, less = Counter(theirs) - Counter(ours), Counter(ours) - Counter(theirs)
        if more or less:
            extra = ", ".join(_say(event) for event in more) or "none"
            missing = ", ".join(_say(event) for event in less) or "none"
            raise Difference(
                "HC-EVENT-06", f"published but not expected: {extra}; expected but not published: {missing}",
                Differs(kind="event", direction=direction_of(more, less), what=say.kinds_of((*more, *less))),
            )  # fmt: skip

    def content(self, state: State, known: Content, view: Seen) -> None:
        """Each page that holds something holds the same on the other side (HC-PAGE-06, HC-PAGE-07)."""
        for pool_name in self.pools:
            requirement = "HC-PAGE-06" if TIER[pool_name] == "device" else "HC-PAGE-07"
            stamps, theirs = state.pools[pool_name].stamp, known.stamps[pool_name]
            owner = state.pools[pool_name].owner
            changing = {page for each in state.passes.values() for pool, page in each.writes if pool == pool_name}
            for page, partner in self.pairs[pool_name].items():
                if page in changing:
                    # A pass goes on from a state in place: until it ends the slot holds neither.
                    continue
                kind, holder = owner[page]
                if kind != "node" and is_read_for_nobody(state.storage.records.get(str(holder)), pool_name, page):
                    continue
                expected, actual = stamps[page], theirs.get(partner)
                if expected is not None and actual != expected:
                    held = (
                        "nothing"
                        if actual is None
                        else f"the last page of [{view.names.get(actual, 'a key now gone')}]"
                    )
                    says = view.names.get(expected, "a request's key")
                    raise Difference(
                        requirement, f"{CALLED[pool_name]} {partner} holds {held}, expected that of [{says}]",
                        Differs(kind="content", pool=pool_name, direction=direction_of(actual, True)),
                    )  # fmt: skip


def _told_as(value: object) -> str:
    return f"[{value}]" if isinstance(value, Key) else str(value)


def _told(outcome: Outcome) -> Pages:
    if isinstance(outcome, Matched):
        return outcome.device
    return outcome.pages if isinstance(outcome, Took) else ()


def _say(event: Event) -> str:
    fields = event.model_dump(exclude_none=True)
    medium = f" on {fields['medium']}" if "medium" in fields else ""
    number = f" {fields['block_hash']}" if "block_hash" in fields else ""
    tokens = f" [{'.'.join(map(str, fields['token_ids']))}]" if "token_ids" in fields else ""
    return f"{fields['kind']}{tokens}{number}{medium}"
