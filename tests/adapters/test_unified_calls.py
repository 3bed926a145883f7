"""What SGLang's tree core does with states where one might expect something else, by its own calls and no caller.

Each test states today's behaviour. One that fails after a move of the pin says that upstream has changed it.
"""

from array import array
from pathlib import Path
from typing import Any

import pytest

from hicache_ref.vocabulary.profile import RULES, Profile, WritePolicy

pytest.importorskip("torch")

import torch

from hicache_ref.adapters.sglang_rust.core import KV, STATE, Core, load_bindings
from hicache_ref.adapters.sglang_rust.moving import state_transfer

pytestmark = pytest.mark.peers


class Raw:
    """One core with states and the shortest way to say its calls."""

    def __init__(self, file: Path, policy: WritePolicy) -> None:
        rules = RULES["sglang-unified-0.5.23"].model_copy(update={"write_policy": policy})
        self.core = Core(load_bindings(file), Profile(rules=rules, state=True))
        self.tree: Any = self.core.tree

    def insert(self, tokens: list[int], slots: list[int], state: int) -> int:
        """The node at which the insert ended."""
        values = [torch.tensor(each, dtype=torch.int64) for each in (slots, [state])]
        params = self.core.bindings.InsertParamsBinding(array("q", tokens), values[0], mamba_value=values[1])
        step = self.tree.begin_insert(params)
        while step.result is None:
            step = self.tree.resume_insert()
        self.tree.end_insert()
        node: int = step.result.last_device_node
        return node

    def match(self, tokens: list[int]) -> Any:
        """The match result."""
        return self.tree.match_prefix(self.core.match_params(tokens, None))

    def back_up(self, node: int, slots: list[int], state: int) -> None:
        """A backup that has ended and was acknowledged."""
        others = {STATE: [state_transfer(host=(state,))]}
        self.tree.commit_backup(node, torch.tensor(slots, dtype=torch.int64), others)
        self.tree.mark_write_through_pending([node], node)
        self.tree.finish_write_through([node], node)


def test_a_host_hit_leaves_out_what_is_resident_and_has_no_host_copy(sglang_core: Path) -> None:
    """The best end of [1, 0, 0] is three pages deep and nothing is at a device end; two are told to be loaded, and
    a branching place is told where there is a state. Under write_back only: else what is above has host copies."""
    raw = Raw(sglang_core, "write_back")
    raw.insert([1, 0, 0], [0, 1, 2], state=0)
    raw.match([1, 1])
    raw.tree.evict_device_start(STATE, 1)
    victim = raw.tree.evict_device_next_node(STATE, {KV: 0, STATE: 0}).node_id
    assert raw.tree.evict_device_leaf(victim).backup_kv is not None
    raw.back_up(victim, [0, 1], state=0)
    raw.tree.demote(victim)
    raw.tree.evict_device_end(STATE)
    found = raw.match([1, 0, 0])
    assert victim == found.best_match_node_id
    assert (0, 2, 3) == (found.device_prefix_len, found.host_hit_length, found.full_kv_hit_length)
    assert found.mamba_branching_seqlen == 3


def test_the_copy_of_a_late_state_publishes_pages_again(sglang_core: Path) -> None:
    """[0] is on host and was published; when a state that came late has followed, it is published once more."""
    raw = Raw(sglang_core, "write_through")
    raw.back_up(raw.insert([0, 1], [0, 1], state=0), [0, 1], state=0)
    late = raw.insert([0], [2], state=1)
    raw.tree.take_events()
    raw.back_up(late, [], state=1)
    assert [("block_stored", "CPU_PINNED")] == [(event[0], event[5]) for event in raw.tree.take_events()]
