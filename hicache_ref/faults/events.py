"""Faults of events: whoever adds them up believes something else than what is cached."""

from hicache_ref.faults.catalogue import OWN, plant
from hicache_ref.model import Model, Step
from hicache_ref.model.chooser import POLICY, Chooser
from hicache_ref.model.state import Node, Part
from hicache_ref.vocabulary.events import BlockStored
from hicache_ref.vocabulary.hashing import chain
from hicache_ref.vocabulary.ids import KV_DEVICE, KV_HOST, Medium, PageHash, Pages, PoolName
from hicache_ref.vocabulary.operations import Operation, Reset
from hicache_ref.vocabulary.outcomes import Done, Refused


@plant("suffix-only-announced", "K13", "D1", "SG-27072", expected=("HC-EVENT-01", "HC-STORE-10"))
class SuffixOnlyAnnounced(Model):
    """When the backup of a node ends that was split meanwhile, only its lower half is announced on host.

    SGLang's hybrid cache: the pending entry names one node, which the split has made the suffix.
    """

    def _acknowledge(self, parts: tuple[Part, ...]) -> None:
        """The last owner of each part."""
        for part in parts:
            for node in self.owners(KV_HOST, part.host)[-1:]:
                self.publish_stored(node, "CPU_PINNED", node.hashes)


@plant("revival-not-announced", "K13", "SG-32537", expected="HC-EVENT-01")
class RevivalNotAnnounced(Model):
    """A node that comes back to the device, recomputed or loaded, is not announced there.

    SGLang's HiRadixCache: the branch that revives a host-only node emits nothing.
    """

    def publish_stored(self, node: Node, medium: Medium, only: tuple[PageHash, ...]) -> None:
        """Not on device if it is on host."""
        if medium != "GPU" or KV_HOST not in node.at:
            super().publish_stored(node, medium, only)


@plant("host-store-not-announced", "K13", "SG-22894", expected="HC-EVENT-01")
class HostStoreNotAnnounced(Model):
    """Nothing is announced when a page arrives on host.

    SGLang had store events for the device tier only.
    """

    def _acknowledge(self, parts: tuple[Part, ...]) -> None:
        """Nothing."""


@plant("drop-not-announced", "K13", "SG-29750", expected="HC-EVENT-01")
class DropNotAnnounced(Model):
    """A node that leaves the tree by a second way is not announced as removed.

    SGLang's session cache frees the leaves of a closed session silently.
    """

    def drop_subtree(self, node: Node) -> None:
        """The events of the drop are taken back."""
        announced = len(self.events)
        super().drop_subtree(node)
        del self.events[announced:]


@plant("host-event-says-gpu", "K13", "VL-54325", expected="HC-EVENT-01")
class HostEventSaysGpu(Model):
    """A page that arrives on host is announced on the device.

    vLLM's SimpleCPUOffload: the shared pool labels events with a default medium.
    """

    def publish_stored(self, node: Node, medium: Medium, only: tuple[PageHash, ...]) -> None:
        """Always the default."""
        super().publish_stored(node, "GPU", only)


@plant("event-without-parent", "K13", "VL-54325", expected="HC-EVENT-02")
class EventWithoutParent(Model):
    """The first page of a node is announced without the page before it.

    vLLM's SimpleCPUOffload: the request is gone when the store completes, and with it the parent.
    """

    def publish_stored(self, node: Node, medium: Medium, only: tuple[PageHash, ...]) -> None:
        """The first event loses its parent."""
        first = len(self.events)
        super().publish_stored(node, medium, only)
        for index, event in enumerate(self.events[first : first + 1], first):
            if isinstance(event, BlockStored):
                self.events[index] = event.model_copy(update={"parent_block_hash": None})


@plant("host-announced-at-submission", "K13", OWN, expected=("HC-EVENT-04", "HC-EVENT-05"))
class HostAnnouncedAtSubmission(Model):
    """A page is announced on host when its backup is submitted, and again when it is there."""

    def place(self, node: Node, pool_name: PoolName, pages: Pages | None) -> None:
        """Announced as soon as it has a place."""
        super().place(node, pool_name, pages)
        if pool_name == KV_HOST and pages is not None:
            self.publish_stored(node, "CPU_PINNED", node.hashes)


@plant("removed-though-never-stored", "K13", OWN, expected="HC-EVENT-05")
class RemovedThoughNeverStored(Model):
    """The removal of a host copy is announced although its backup was never applied."""

    def is_being_written(self, pool_name: PoolName, pages: Pages) -> bool:
        """Not to whoever asks about the host copy of a resident node."""
        owner = self.state.pools[pool_name].owner[pages[0]]
        node = self.state.nodes.get(owner[1]) if owner[0] == "node" and isinstance(owner[1], int) else None
        resident = node is not None and KV_DEVICE in node.at
        return not resident and super().is_being_written(pool_name, pages)


@plant("clear-not-announced", "K13", "LD-593", expected="HC-EVENT-01")
class ClearNotAnnounced(Model):
    """A reset is not announced, and whoever follows the events goes on believing.

    llm-d's event pool decoded and logged the event and did nothing; here the cache itself says nothing.
    """

    def on_reset(self, op: Reset) -> Done | Refused:
        """Silently."""
        told = super().on_reset(op)
        self.events.clear()
        return told


@plant("events-ignore-namespace", "K13", OWN, expected=("HC-EVENT-01", "HC-EVENT-03"))
class EventsIgnoreNamespace(Model):
    """Events carry hashes without the namespace, so that blocks of two adapters look alike to whoever follows."""

    def _event_hashes(self, node: Node) -> tuple[PageHash, ...]:
        """As if there were none."""
        path = [self.state.nodes[number] for number in reversed(self.path(node.id))]
        return chain(tuple(page for each in path for page in each.key), None, self.profile.bigram)[-len(node.key) :]


@plant("switched-off-still-publishes", "K13", OWN, expected="HC-EVENT-07")
class SwitchedOffStillPublishes(Model):
    """A cache whose events are off publishes all the same."""

    def step(self, op: Operation, choose: Chooser = POLICY) -> Step:
        """The switch is not asked."""
        profile = self.profile
        self.profile = profile.model_copy(update={"events": True})
        told = super().step(op, choose)
        self.profile = profile
        return told
