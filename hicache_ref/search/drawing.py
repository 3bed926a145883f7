"""What a drawing function sees: the model's state, a source of chance, and names that are few enough to meet again."""

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from hicache_ref.model import Model
from hicache_ref.model.state import Node, Ticket
from hicache_ref.search.keys import draw_key
from hicache_ref.vocabulary.adapter import AttachPolicies
from hicache_ref.vocabulary.ids import KV_DEVICE, ROOT, STATE_DEVICE
from hicache_ref.vocabulary.keys import Key
from hicache_ref.vocabulary.operations import Operation
from hicache_ref.vocabulary.storage import AttachFailure

REQUESTS = ("r0", "r1", "r2")
RECEIPTS = ("a", "b", "c")


@dataclass
class Drawing:
    """What a drawing function sees."""

    model: Model
    rng: random.Random
    operations: frozenset[str]
    namespaces: bool = True
    first_only: bool = False
    """Of storage operations of one kind only the one submitted first may end."""

    one_backend: bool = False
    """No backend but the first can be attached."""

    peers: bool = False
    """Ranks may know of fewer pages read than this one does."""

    attach_failures: tuple[AttachFailure, ...] = ()
    """In which ways an attach may fail."""

    attach_policies: AttachPolicies = "never"
    """When an attach may bring a write policy."""

    forces: bool = False
    """A detach or a reset may end storage work that runs."""

    told: list[Key] = field(default_factory=list)
    """Keys that were inserted, for asking again."""

    clock: int = 0
    """The time of the outside world, in milliseconds."""

    @property
    def may_bring_policy(self) -> bool:
        """Whether an attach may bring a write policy now."""
        return self.attach_policies == "any" or (self.attach_policies == "idle" and not self.model.pending())

    @property
    def now(self) -> int:
        """A moment a little or a long time after the last one."""
        self.clock += self.rng.choice((0, 100, 600, 2000))
        return self.clock

    def key(self) -> Key:
        """A key: a word, or one that was inserted before."""
        if self.told and self.rng.random() < 0.3:
            return self.rng.choice(self.told)
        return draw_key(self.rng, self.model.profile, namespaces=self.namespaces)

    def device_end(self, key: Key) -> Key | None:
        """Where a request with this key goes on, its last page left out, for that is always computed; None: anew."""
        model = self.model
        found = model.look(model.pages(key)[:-1], key.extra)
        reach = model.state.nodes[found.node.parent] if found.inside else found.node
        end = model.resident_end(reach)
        return model.key_of(end) if end.id != ROOT else None

    def longer(self, rid: str) -> Key | None:
        """Of a hybrid model: a key that the request can compute, going on from the state that it has."""
        model = self.model
        request = model.state.requests[rid]
        held = model.state.pools[STATE_DEVICE].stamp[request.state[0]]
        ends = [node for node in model.state.nodes.values() if node.id != ROOT and node.hashes[-1] == held]
        start = model.key_of(ends[0]) if ends else Key(tokens=())
        rest = draw_key(self.rng, model.profile, namespaces=self.namespaces and not ends)
        width = len(request.pages) * model.profile.sizes.page_size + (model.profile.bigram and not ends)
        extra = start.extra if ends else rest.extra
        return Key(tokens=start.tokens + rest.tokens[:width], extra=extra) if held is None or ends else None

    def count(self) -> int:
        """A small number of pages."""
        return self.rng.randint(1, 3)

    def free_request(self) -> str | None:
        """A request name that is not in use."""
        state = self.model.state
        return self.pick([r for r in REQUESTS if r not in state.requests and r not in state.passes])

    def pick(self, names: list[str]) -> str | None:
        """One of them, or None."""
        return self.rng.choice(names) if names else None

    def node(self, wanted: Callable[[Node], bool]) -> Key | None:
        """The key of a node below the root that is wanted."""
        nodes = [node for node in self.model.state.nodes.values() if node.id != ROOT and wanted(node)]
        return self.model.key_of(self.rng.choice(nodes)) if nodes else None

    def tombstone(self) -> Key | None:
        """The key of a resident node without a state on device."""
        return self.node(lambda node: STATE_DEVICE not in node.at and KV_DEVICE in node.at)

    def ending(self) -> list[Ticket]:
        """The running copies that could end now, well or not."""
        model = self.model
        running = [ticket for ticket in model.state.tickets.values() if ticket.good is None]
        return [ticket for ticket in running if ticket.doomed or not model.waits_for(ticket)]


Draw = Callable[[Drawing], Operation | None]
Composite = Callable[[Drawing], Iterator[Operation]]
