"""What SGLang's compiled core does where one might expect something else, by its own calls and no caller of ours.

Each test states today's behaviour. One that fails after a move of the pin says that upstream has changed it.
"""

from array import array
from pathlib import Path
from typing import Any

import pytest

from hicache_ref.vocabulary.hashing import block_hash, chain, namespace_seed
from hicache_ref.vocabulary.keys import pages_of
from hicache_ref.vocabulary.profile import RULES, Profile, Sizes, WritePolicy

pytest.importorskip("torch")

import torch

from hicache_ref.adapters.sglang_rust.core import KV, Core, load_bindings

pytestmark = pytest.mark.peers


class Raw:
    """One core and the shortest way to say its calls."""

    def __init__(
        self, file: Path, policy: WritePolicy = "write_through", page_size: int = 1, bigram: bool = False
    ) -> None:
        rules = RULES["sglang-0.5.23"].model_copy(update={"write_policy": policy})
        self.core = Core(load_bindings(file), Profile(rules=rules, sizes=Sizes(page_size=page_size), bigram=bigram))
        self.tree: Any = self.core.tree

    def insert(self, tokens: list[int], slots: list[int], extra: str | None = None) -> int:
        """The node at which the insert ended."""
        params = self.core.bindings.InsertParamsBinding(array("q", tokens), self.slots(slots), extra_key=extra)
        node: int = self.tree.insert(params).last_device_node
        return node

    def match(self, tokens: list[int]) -> Any:
        """The match result."""
        return self.tree.match_prefix(self.core.match_params(tokens, None))

    def slots(self, slots: list[int]) -> Any:
        """The slots as a tensor."""
        return torch.tensor(slots, dtype=torch.int64)

    def back_up(self, node: int, slots: list[int]) -> None:
        """A backup that has ended and was acknowledged."""
        self.tree.commit_backup(node, self.slots(slots), {})
        lock = self.tree.inc_lock_ref(node)
        self.tree.mark_write_through_pending([node], node)
        self.tree.finish_write_through([node], node)
        self.unlock(lock)

    def unlock(self, lock: Any) -> None:
        """What inc_lock_ref did is undone."""
        self.tree.dec_lock_ref(lock.node_id, self.core.release_params(lock))

    def unlock_host(self, lock: Any) -> None:
        """What inc_host_lock_ref did is undone."""
        self.tree.dec_host_lock_ref(lock.node_id, self.core.release_params(lock))

    def evict(self) -> list[int]:
        """The device slots of the next victim."""
        self.tree.evict_device_start(KV, 1)
        victim = self.tree.evict_device_next_node(KV, {KV: 0}).node_id
        freed = self.tree.evict_device_leaf(victim).new_device_frees
        self.tree.evict_device_end(KV)
        return [slot for slots in freed.get(KV, ()) for slot in slots.tolist()]

    def start_load(self, node: int, slots: list[int]) -> tuple[Any, Any]:
        """A submitted load of the host-only chain that ends at the node: its lock and its host lock."""
        host_lock = self.tree.inc_host_lock_ref(node)
        spec, others = self.tree.build_load_back_spec(node, None)
        self.tree.commit_load_back(node, self.slots(slots), spec, others)
        return self.tree.inc_lock_ref(node), host_lock

    def finish_load(self, locks: tuple[Any, Any]) -> None:
        """The load has ended and was acknowledged."""
        lock, host_lock = locks
        self.unlock(lock)
        self.unlock_host(host_lock)
        self.tree.finish_load_back(lock.node_id)

    def complaint(self, loads: list[int]) -> str | None:
        """What the core's own check says while these loads run."""
        try:
            self.tree.sanity_check([], [(node, node) for node in loads])
        except AssertionError as error:
            return str(error)
        return None


def test_raw_change_of_policy_is_not_guarded(sglang_core: Path) -> None:
    """A host-only child below an unbacked parent is lawful under write_back only: the setter takes the change, and
    evicting the parent panics. Callers have to ask is_write_through_compatible(), as upstream's attach does."""
    raw = Raw(sglang_core, "write_back")
    raw.insert([0], [0])
    child = raw.insert([0, 1], [0, 1])
    raw.tree.commit_backup(child, raw.slots([0]), {})
    raw.tree.mark_write_through_pending([child], child)
    raw.tree.finish_write_through([child], child)
    raw.tree.demote(child)
    assert raw.complaint([]) is None
    assert raw.tree.is_write_through_compatible() is False
    raw.tree.set_is_write_back(False)
    with pytest.raises(BaseException, match="FreeNonLeafNode"):
        raw.evict()


@pytest.mark.parametrize(("is_split", "victim"), [(False, [0, 1]), (True, [2])])
def test_a_split_makes_a_suffix_recent_that_nobody_used(sglang_core: Path, is_split: bool, victim: list[int]) -> None:
    """[0, 1] is older than [2] and goes first; after a match of [0] alone, [2] goes before the suffix [1]: the
    split stamps it, though a comment in upstream's Python core says that a split is no access of the suffix."""
    raw = Raw(sglang_core)
    raw.insert([0, 1], [0, 1])
    raw.insert([2], [2])
    if is_split:
        raw.match([0])
    assert victim == raw.evict()


@pytest.mark.parametrize(("tokens", "complains"), [([1, 1], False), ([1], True)])
def test_own_check_alarms_while_part_of_a_split_host_only_node_loads(
    sglang_core: Path, tokens: list[int], complains: bool
) -> None:
    """A node is backed up and demoted, then a match of its first half splits it and that half is loaded: the check
    misses it in the list of host duplicates until finish_load_back. That list is used under write_back only."""
    raw = Raw(sglang_core)
    node = raw.insert([1, 1], [0, 1])
    raw.back_up(node, [0, 1])
    raw.evict()
    half = raw.match(tokens).last_host_node_id
    locks = raw.start_load(half, [5, 6][: len(tokens)])
    said = raw.complaint([half])
    assert complains is (said is not None)
    assert said is None or "(1 violations" in said
    assert said is None or "Full host coexistence missing" in said
    raw.finish_load(locks)
    assert raw.complaint([]) is None


def test_acknowledging_an_unknown_backup_publishes_a_copy_that_is_not_there(sglang_core: Path) -> None:
    """finish_write_through with an unknown ack id reports the node as stored on host; the node has no host copy."""
    raw = Raw(sglang_core)
    node = raw.insert([0, 1], [0, 1])
    raw.tree.take_events()
    raw.tree.finish_write_through([node], 77)
    assert [("block_stored", "CPU_PINNED")] == [(event[0], event[5]) for event in raw.tree.take_events()]
    assert raw.tree.node_backuped(node) is False


def test_one_receipt_releases_twice_while_another_holds(sglang_core: Path) -> None:
    """A second dec_lock_ref with one receipt is accepted while somebody else pins the node, and takes his pin: a
    receipt is checked by the node that it names, no more."""
    raw = Raw(sglang_core)
    node = raw.insert([0, 1], [0, 1])
    mine, _ = raw.tree.inc_lock_ref(node), raw.tree.inc_lock_ref(node)
    raw.unlock(mine)
    assert (0, 2) == (raw.tree.evictable_size(), raw.tree.protected_size())
    raw.unlock(mine)
    assert (2, 0) == (raw.tree.evictable_size(), raw.tree.protected_size())


def test_a_load_that_ends_under_another_policy_leaves_its_mark(sglang_core: Path) -> None:
    """A load begun under write_back and ended under write_through keeps load_back_pending_id, so that the host copy
    is never reclaimed. Upstream changes its policy only while nothing runs (Scheduler.is_fully_idle)."""
    raw = Raw(sglang_core, "write_back")
    node = raw.insert([1, 2], [0, 1])
    raw.back_up(node, [0, 1])
    raw.tree.demote(node)
    locks = raw.start_load(node, [5, 6])
    assert raw.tree.is_write_through_compatible() is True
    raw.tree.set_is_write_back(False)
    raw.finish_load(locks)
    said = raw.complaint([])
    assert said is not None
    assert f"node {node} load_back_pending_id={node} has no live load-back" in said
    raw.tree.set_is_write_back(True)
    assert {} == raw.tree.drive_host_eviction(KV, 2, False).new_host_frees


@pytest.mark.parametrize(("page_size", "bigram"), [(1, False), (2, False), (16, False), (1, True), (2, True)])
@pytest.mark.parametrize("extra", [None, "adapter"])
def test_hashes_are_those_of_the_vocabulary(sglang_core: Path, page_size: int, bigram: bool, extra: str | None) -> None:
    """Page hashes depend on the namespace, the hashes of events do not; both are `hashing`, byte for byte."""
    raw = Raw(sglang_core, page_size=page_size, bigram=bigram)
    tokens = [*range(40), 2**32, 7, 2**62]
    pages = pages_of(tuple(tokens), page_size, bigram)
    end = len(pages) * page_size + bigram
    node = raw.insert(tokens[:end], list(range(len(pages) * page_size)), extra)
    assert list(chain(pages, namespace_seed(extra), bigram)) == raw.tree.get_hash_values(node)
    (event,) = raw.tree.take_events()
    assert [block_hash(digest) for digest in chain(pages, None, bigram)] == event[1]
