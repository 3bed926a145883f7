"""Faults of loading back: sources that go, limits that do not hold, and failures that leave something behind."""

from dataclasses import replace

from hicache_ref.faults.catalogue import OWN, WRITE_BACK, plant
from hicache_ref.model import Model
from hicache_ref.model.locks import Pins
from hicache_ref.model.state import Direction, Node, Part, Ticket
from hicache_ref.vocabulary.ids import KV_DEVICE, NodeId
from hicache_ref.vocabulary.operations import LoadBack
from hicache_ref.vocabulary.outcomes import Refused, Submitted


@plant("load-source-unpinned", "K6", "D25", "SG-27631", "TR-8830", expected="HC-EVICT-04", rules=WRITE_BACK)
class LoadSourceUnpinned(Model):
    """The eviction that a load triggers takes the host pages that are about to be loaded.

    SGLang's hybrid cache under write_back: making room backs victims up, which evicts host leaves, among them the
    source. TensorRT-LLM: the matched block is first in the queue of the secondary pool.
    """

    def pin(self, anchor: NodeId, *, evicted_too: bool) -> Pins:
        """Resident nodes only."""
        return super().pin(anchor, evicted_too=False)


@plant("load-unpinned-at-commit", "K6", "SG-31427", expected="HC-LOAD-02")
class LoadUnpinnedAtCommit(Model):
    """A load is not pinned once it is submitted: device and host pages may go while it runs.

    SGLang's unified tree ends the protection when the tree is updated, which is before the copy has run.
    """

    def submit(self, to: Direction, anchor: Node, parts: tuple[Part, ...], *, pinned: bool) -> Ticket:
        """Backups are pinned."""
        return super().submit(to, anchor, parts, pinned=pinned and to == "host")


@plant("failed-load-keeps-part", "K12", "D13", expected="HC-LOAD-01")
class FailedLoadKeepsPart(Model):
    """A load that finds no room for the whole chain loads its beginning, and says that nothing was loaded.

    SGLang's hybrid cache answers with a shallower node and leaves the longer prefix in the request.
    """

    def on_load_back(self, op: LoadBack) -> Submitted | Refused:
        """The first node, if that fits."""
        node = self.node_at(op.key)
        assert node is not None
        first = self._host_only_chain(node)[0]
        told = super().on_load_back(op)
        if isinstance(told, Refused) and first is not node and len(first.key) <= self.free_count(KV_DEVICE):
            super().on_load_back(LoadBack(key=self.key_of(first)))
        return told


@plant("quota-ignored", "K10", OWN, expected="HC-LOAD-04")
class QuotaIgnored(Model):
    """A load takes more device pages than its quota."""

    def on_load_back(self, op: LoadBack) -> Submitted | Refused:
        """No quota."""
        return super().on_load_back(op.model_copy(update={"quota": None}))


@plant("load-threshold-in-whole-pages", "K10", OWN, expected="HC-LOAD-04")
class LoadThresholdInWholePages(Model):
    """A threshold in tokens is taken for the whole pages that fit into it, so that shorter loads are submitted."""

    def on_load_back(self, op: LoadBack) -> Submitted | Refused:
        """What is left of the threshold beyond whole pages does not count."""
        profile, sizes = self.profile, self.profile.sizes
        whole = sizes.load_back_threshold - sizes.load_back_threshold % sizes.page_size
        self.profile = profile.model_copy(update={"sizes": sizes.model_copy(update={"load_back_threshold": whole})})
        told = super().on_load_back(op)
        self.profile = profile
        return told


@plant("load-of-the-end-alone", "K5", OWN, expected=("HC-TREE-06", "HC-EVICT-08"))
class LoadOfTheEndAlone(Model):
    """A load brings back the node at the key's end, and nothing above it."""

    def _host_only_chain(self, node: Node) -> list[Node]:
        """The node."""
        return [node]


@plant("failed-load-counts-as-loaded", "K12", "DY-15079", expected="HC-XFER-07")
class FailedLoadCountsAsLoaded(Model):
    """After a failed load the nodes stay resident, with pages that were never written.

    Dynamo's KVBM raises its completion counter for errors too, and the request runs on foreign data.
    """

    def lose_device(self, node: Node) -> set[str]:
        """Nothing is lost."""
        return set()


@plant("failed-load-drops-host-copy", "K4", OWN, expected="HC-XFER-12")
class FailedLoadDropsHostCopy(Model):
    """After a failed load the node leaves the tree, although its host copy is as good as before."""

    def lose_device(self, node: Node) -> set[str]:
        """The node and all below it."""
        return self.lose_subtree(node) if node.id in self.state.nodes else set()


@plant("failed-load-keeps-below", "K5", OWN, expected="HC-TREE-06")
class FailedLoadKeepsBelow(Model):
    """A failed load takes its nodes from the device, and leaves what is resident below them there."""

    def lose_device(self, node: Node) -> set[str]:
        """The node alone."""
        if node.id not in self.state.nodes or not self.is_settled_on_host(node):
            return super().lose_device(node)
        pages = node.device
        self.place(node, KV_DEVICE, None)
        self.release(KV_DEVICE, pages or ())
        return self.receipts_naming({node.id})


@plant("lost-receipts-not-told", "K12", OWN, expected="HC-LOCK-03")
class LostReceiptsNotTold(Model):
    """Nobody is told that a failed copy took a node that a receipt names."""

    def apply_end(self, ticket: Ticket) -> set[str]:
        """Not a word."""
        super().apply_end(ticket)
        return set()


@plant(
    "everybody-is-told", "K12", OWN, expected="HC-CONF-02",
    lockstep_only="no requirement says that only receipts which lost something are told",
)  # fmt: skip
class EverybodyIsTold(Model):
    """Every poll tells every receipt that it lost something, so that good data is computed again."""

    def apply_end(self, ticket: Ticket) -> set[str]:
        """All receipts."""
        super().apply_end(ticket)
        return set(self.state.receipts)


@plant("part-counts-as-whole", "K12", OWN, expected="HC-XFER-07")
class PartCountsAsWhole(Model):
    """A copy of which some parts are in place is applied as if all were."""

    def apply_end(self, ticket: Ticket) -> set[str]:
        """Any good part makes it whole."""
        return super().apply_end(replace(ticket, good=None) if ticket.good else ticket)
