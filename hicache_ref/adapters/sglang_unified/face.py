"""SGLang's tree core in Python behind the names of the compiled one, so that one caller drives both.

Upstream's RustUnifiedTreeCore makes the compiled core look like the Python one; this is the same in the other
direction. Nothing is decided here: parameters, results and actions are put into the form of the other core.
"""

import importlib
import os
from array import array
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from hicache_ref.adapters.sglang_hiradix.importing import PACKAGE
from hicache_ref.adapters.sglang_hiradix.substitutes import SERVER_ARGS, Bag
from hicache_ref.adapters.sglang_rust.core import KV, STATE

_CACHE = f"{PACKAGE}.srt.mem_cache"
_UNIFIED = f"{_CACHE}.unified_cache"

# The compiled core is told so in each call (see Moving.evict_host).
_SKIP_RECLAIM = "SGLANG_HICACHE_SKIP_HOST_DUPLICATE_RECLAIM"


class PythonBindings:
    """Stands for the compiled core's module: the classes by which it is made and spoken to."""

    def __init__(self) -> None:
        """Raises ImportError where upstream's modules do not fit each other or the stubs."""
        os.environ[_SKIP_RECLAIM] = "true"
        load = importlib.import_module
        self.params: Any = load(f"{_CACHE}.base_prefix_cache")
        self.keys: Any = load(f"{_CACHE}.radix_cache")
        self.storage: Any = load(f"{_CACHE}.hicache_storage")
        self.init: Any = load(f"{_CACHE}.cache_init_params").CacheInitParams
        self.core: Any = load(f"{_UNIFIED}.unified_tree_core").UnifiedTreeCore
        self.components: Any = load(f"{_UNIFIED}.components")
        self.memory: Any = load(f"{_CACHE}.memory_pool")
        self.kinds: Any = self.components.ComponentType

        # By the names of the module that this stands for.
        vars(self).update(
            TreeCoreInitParamsBinding=Bag,
            RustUnifiedTreeCoreBinding=partial(PythonTree, self, bigram=False),
            RustBigramUnifiedTreeCoreBinding=partial(PythonTree, self, bigram=True),
            MatchParamsBinding=self._match,
            InsertParamsBinding=self._insert,
            DecLockRefParamsBinding=self.params.DecLockRefParams,
        )

    def _match(self, key: "array[int]", extra_key: str | None = None) -> Any:
        return self.params.MatchPrefixParams(key=self.keys.RadixKey(key, extra_key))

    def _insert(self, key: "array[int]", value: Any, extra_key: str | None = None, **rest: Any) -> Any:
        return self.params.InsertParams(key=self.keys.RadixKey(key, extra_key), value=value, **rest)


class PythonTree:
    """A core as the compiled one is called; calls whose form is the same on both are passed on as they are."""

    def __init__(self, bindings: PythonBindings, params: Bag, components: Sequence[int], *, bigram: bool) -> None:
        no_limit = Bag(mamba_max_states_per_path=-1)
        SERVER_ARGS.__dict__.update(mamba=no_limit, mamba_cache_chunk_size=params.mamba_cache_chunk_size)
        self._of = bindings
        kinds = [bindings.kinds(number) for number in components]
        made = bindings.init(
            disable=False, req_to_token_pool=bindings.memory.HybridReqToTokenPool(), token_to_kv_pool_allocator=None,
            page_size=params.page_size, is_eagle=bigram, eviction_policy=params.eviction_policy,
            eviction_policy_config=_strategy(params), enable_kv_cache_events=params.enable_kv_cache_events,
            tree_components=tuple(kinds),
        )  # fmt: skip
        # The cache that the components know is asked for its pools, and those are the caller's.
        cache = Bag(tree_components=tuple(kinds))
        drivers = {KV: bindings.components.FullComponent, STATE: bindings.components.MambaComponent}
        self.core: Any = bindings.core(made, {kind: drivers[int(kind)](cache, made) for kind in kinds})

    def __getattr__(self, name: str) -> Any:
        return getattr(self.core, name)

    # -- settings ---------------------------------------------------------------------------------------------------

    def is_write_back(self) -> bool:
        """Whether that policy rules."""
        return bool(self.core.is_write_back)

    def set_is_write_back(self, rules: bool) -> None:
        """That policy rules, or does not."""
        self.core.is_write_back = rules

    def set_write_through_threshold(self, hits: int) -> None:
        """At so many hits a node is to be backed up."""
        self.core.write_through_threshold = hits

    def record_all_cleared_event(self) -> None:
        """It is told that nothing is cached."""
        self.core.kv_events.record_all_cleared()

    # -- matches, locks, inserts ------------------------------------------------------------------------------------

    def match_prefix(self, params: Any) -> Any:
        """What a match found."""
        found = self.core.match_prefix(params)._asdict()
        ends = {f"{name}_id": found[name] for name in ("last_device_node", "last_host_node", "best_match_node")}
        return Bag(**found | ends | {"cache_actions": _tagged(found["cache_actions"])})

    def match_full_device_prefix(self, params: Any) -> Any:
        """How far pages are resident; nothing is used by that."""
        return self.core.match_full_device_prefix(params.key)

    def begin_insert(self, params: Any) -> Any:
        """The first step of an insert."""
        return _step(self.core.begin_insert(params))

    def resume_insert(self) -> Any:
        """The next step of an insert."""
        return _step(self.core.resume_insert())

    def end_insert(self) -> list[tuple[Any, ...]]:
        """What was still asked for."""
        return _tagged(self.core.end_insert())

    # -- eviction ---------------------------------------------------------------------------------------------------

    def evict_device_start(self, component: int, count: int) -> None:
        """A walk through what may be evicted begins."""
        self.core.evict_device_start(self._of.kinds(component), count)

    def evict_device_next_node(self, component: int, tracker: Mapping[int, int]) -> Any:
        """The next victim."""
        kinds = self._of.kinds
        return _freed(self.core.evict_device_next_node(kinds(component), {kinds(n): c for n, c in tracker.items()}))

    def evict_device_leaf(self, node: int) -> Any:
        """What became of a victim."""
        return _freed(self.core.evict_device_leaf(node, self.core.is_write_back))

    def finish_mamba_state_eviction(self, node: int) -> Any:
        """What became of a state whose copy was tried."""
        return _freed(self.core.finish_mamba_state_eviction(node))

    def evict_device_end(self, component: int) -> None:
        """The walk has ended."""
        self.core.evict_device_end(self._of.kinds(component))

    def demote(self, node: int) -> Any:
        """What a node gave up that is on host only from now on."""
        return _freed(self.core.demote(node))

    def drop_subtree_no_host(self, node: int) -> Any:
        """What was given up with a victim for whose copy there was no room."""
        return _freed(self.core.drop_subtree_no_host(node))

    def drive_host_eviction(self, component: int, count: int, skip_reclaim: bool) -> Any:
        """What was given up on host."""
        os.environ[_SKIP_RECLAIM] = "true" if skip_reclaim else "false"
        return _freed(self.core.drive_host_eviction(self._of.kinds(component), count))

    # -- copies -----------------------------------------------------------------------------------------------------

    def build_backup_kv_action(self, node: int) -> tuple[Any, ...]:
        """The nodes that a backup of this one copies."""
        return _action(self.core.build_backup_kv_action(node))

    def build_backup_spec(self, node: int) -> Any:
        """What a backup of this node copies."""
        slots, others = self.core.build_backup_spec(node)
        return slots, _as_tuples(others)

    def commit_backup(self, node: int, slots: Any, others: Mapping[int, Any]) -> None:
        """The node has these host slots."""
        self.core.commit_backup(node, slots, self._as_transfers(others))

    def build_load_back_spec(self, node: int, state: Any) -> Any:
        """What a load copies, also into a request's state slot."""
        request = None if state is None else Bag(kv=Bag(mamba_pool_idx=state))
        slots, others = self.core.build_load_back_spec(node, request)
        return _as_tuple(slots), _as_tuples(others)

    def commit_load_back(self, node: int, slots: Any, loaded: Any, others: Mapping[int, Any]) -> list[tuple[Any, ...]]:
        """The chain has these device slots."""
        transfers = self._as_transfers(others)
        return _tagged(self.core.commit_load_back(node, slots, self._as_transfer(loaded), transfers))

    def _as_transfer(self, given: tuple[Any, ...]) -> Any:
        name, host, device, nodes, keys, policy = given
        return self._of.storage.PoolTransfer(
            name=self._of.storage.PoolName(name), host_indices=host, device_indices=device, nodes_to_load=nodes,
            keys=keys, hit_policy=self._of.storage.PoolHitPolicy(policy),
        )  # fmt: skip

    def _as_transfers(self, others: Mapping[int, Any]) -> dict[Any, list[Any]]:
        return {self._of.kinds(number): list(map(self._as_transfer, each)) for number, each in others.items()}

    # -- reading ----------------------------------------------------------------------------------------------------

    def component_evictable_size(self, component: int) -> int:
        """Slots of a component that may be given up."""
        return int(self.core.component_evictable_size(self._of.kinds(component)))

    def get_component_device_value(self, node: int, component: int) -> Any:
        """A node's slots on device."""
        return self.core.get_component_device_value(node, self._of.kinds(component))

    def component_has_host_value_only(self, node: int, component: int) -> bool:
        """Whether a node has a component on host and not on device."""
        return bool(self.core.component_has_host_value_only(node, self._of.kinds(component)))

    def build_storage_backup_spec(self, node: int, prefix_keys: bool) -> Any:
        """What would go to storage, None for a node that is not on host."""
        spec = self.core.build_storage_backup_spec(node, prefix_keys)
        return None if spec is None else Bag(**spec._asdict() | {"comp_xfers": _as_tuples(spec.comp_xfers)})

    def snapshot_buffer_backup(self, node: int, prefix_keys: bool) -> Any:
        """The tokens of a node, None for one that is not on device."""
        snapshot = self.core.snapshot_buffer_backup(node, prefix_keys)
        return None if snapshot is None else Bag(key_token_ids=snapshot.key.raw_token_ids())

    def collect_path_info(self, nodes: Sequence[int]) -> Any:
        """As the compiled core: rows of node, parent, start, end, device length or None, children."""
        return [[_row(each) for each in path] for path in self.core.collect_path_info(nodes)]

    def take_events(self) -> list[tuple[Any, ...]]:
        """What happened since this was called."""
        return list(map(_event, self.core.take_events()))


def _strategy(params: Bag) -> dict[str, Any] | None:
    return {"protected_threshold": params.slru_protected_threshold} if params.eviction_policy == "slru" else None


def _row(info: Any) -> tuple[Any, ...]:
    return info.node_id, info.parent_id, info.path_start, info.path_end, info.full_value_len, info.num_children


def _step(step: Any) -> Bag:
    return Bag(actions=_tagged(step.actions), result=step.result)


def _freed(result: Any) -> Bag:
    """What an eviction step gave up, drained as upstream's caller would, and all else that it tells."""
    backup = getattr(result, "backup_kv", None)
    told = {name: getattr(result, name, None) for name in ("node_id", "made_progress", "mamba_backup_node_id")}
    given_up = {
        "new_device_frees": {int(kind): list(each) for kind, each in result.device_frees.items()},
        "new_host_frees": {int(kind): list(each) for kind, each in result.host_frees.items()},
        "tracker": {int(kind): count for kind, count in result.tracker.items()},
        "cache_actions": _tagged(result.cache_actions),
    }
    for each in (result.device_frees, result.host_frees, result.cache_actions):
        each.clear()
    return Bag(**told | given_up | {"backup_kv": None if backup is None else _action(backup)})


_FIELDS: dict[str, tuple[str, tuple[str, ...]]] = {
    "FreeDeviceKV": ("free_device_kv", ("indices",)),
    "BackupKV": ("backup_kv", ("node_ids",)),
    "UpdatePendingBackupOnNodeSplit": (
        "update_pending_backup_on_node_split", ("ack_id", "old_node_id", "new_node_id", "new_child_node_id"),
    ),
    "FreeComponentDeviceSlot": ("free_component_device_slot", ("component_type", "indices")),
    "FreeComponentHostSlot": ("free_component_host_slot", ("component_type", "host_indices")),
}  # fmt: skip
"""Upstream's class of an action -> what the compiled core calls it, and what it tells with it."""


def _action(action: Any) -> tuple[Any, ...]:
    name = type(action).__name__
    tag, fields = _FIELDS.get(name, (name, ()))
    return (tag, *(getattr(action, field) for field in fields))


def _tagged(actions: Sequence[Any]) -> list[tuple[Any, ...]]:
    return list(map(_action, actions))


def _as_tuple(transfer: Any) -> tuple[Any, ...]:
    return (
        transfer.name.value, transfer.host_indices, transfer.device_indices, transfer.nodes_to_load, transfer.keys,
        transfer.hit_policy.value,
    )  # fmt: skip


def _as_tuples(others: Mapping[Any, Any]) -> dict[int, list[tuple[Any, ...]]]:
    return {int(kind): list(map(_as_tuple, each)) for kind, each in others.items()}


def _event(event: Any) -> tuple[Any, ...]:
    match type(event).__name__:
        case "BlockStored":
            units, size = event.token_ids, event.block_size
            return "block_stored", event.block_hashes, event.parent_block_hash, units, size, event.medium.value
        case "BlockRemoved":
            return "block_removed", event.block_hashes, event.medium.value
        case _:
            return ("all_blocks_cleared",)
