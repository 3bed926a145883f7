"""Profile = Rules + Sizes: the lawful behaviours in which implementations differ, and how large the pools are.

A rule is a behaviour, never a fault: no rule switches off an `always` requirement of PAGE, LOCK, XFER or HASH.
Every rule has a stored trace in `tests/` that tells its values apart.
"""

from typing import Annotated, Literal

from pydantic import Field, model_validator

from hicache_ref.vocabulary.base import Frozen
from hicache_ref.vocabulary.clashes import CLASHES
from hicache_ref.vocabulary.ids import KV, KV_DEVICE, KV_HOST, STATE, STATE_DEVICE, STATE_HOST, Component, PoolName
from hicache_ref.vocabulary.presets import PRESETS
from hicache_ref.vocabulary.storage import TimeoutShape

WritePolicy = Literal["write_through", "write_through_selective", "write_back"]
EvictionPolicy = Literal["lru", "lfu", "fifo", "mru", "filo", "priority", "slru"]

WRITE_POLICIES: tuple[WritePolicy, ...] = ("write_through", "write_through_selective", "write_back")
EVICTION_POLICIES: tuple[EvictionPolicy, ...] = ("lru", "lfu", "fifo", "mru", "filo", "priority", "slru")


class Rules(Frozen):
    """Named lawful behaviours. The defaults are the reference rules."""

    write_policy: WritePolicy = "write_through"
    write_through_threshold: Annotated[int, Field(ge=1)] | None = None
    """Hits at which a node is backed up; None: 1 under write_through, else `selective_hits` (HC-BACKUP-05)."""

    selective_hits: Annotated[int, Field(ge=1)] = 2
    """Hits at which write_through_selective backs a node up, where no threshold is given."""

    eviction: EvictionPolicy = "lru"
    slru_protected_threshold: Annotated[int, Field(ge=1)] = 2
    """Uses from which slru evicts a node only after all others."""

    eviction_counts: Literal["uses", "hits"] = "uses"
    """Whether lfu and slru order by uses, counted under every write policy, or by the hits toward a backup."""

    backup_scope: Literal["chain", "node", "node_if_parent"] = "chain"
    """What one backup submits: the unbacked chain root first; the node; the node if its parent is backed up."""

    contiguity: bool = True
    """Whether a backed-up node's parent must be backed up too (HC-BACKUP-01)."""

    lock_evicted: Literal["skip", "count"] = "skip"
    """Whether a lock on a host-only node pins the host-only nodes of its path."""

    split_copies_hit_count: bool = False
    split_stamps: Literal["none", "both"] = "none"
    """Whether a split makes both halves recently used."""

    split_raises_priority: Literal["upper", "both"] = "upper"
    """Whether an insert that splits a node raises the priority of the half that it covers, or of both."""

    split_is_born: bool = False
    """Whether the upper half of a split is as young as the split, or as old as the node was."""

    revive_counts_hit: bool = False
    """Whether an insert that gives an evicted node its device pages back counts as a hit on it."""

    insert_length_counts_revived: bool = False
    """Whether `Inserted.prefix` counts pages of revived nodes (upstream: all walked tokens)."""

    hit_counts_again_for_same_request: bool = False
    """Whether an insert counts hits also on what the same request has inserted before."""

    chunked_counts_hit: bool = True
    write_back_copy: Literal["staged", "blocking"] = "staged"
    """How write_back evicts an unbacked node: a copy is submitted, or it ends inside the step."""

    write_back_protects: bool = False
    """Whether no host copy that an eviction has made is taken again for another by the same eviction."""

    evict_device_for_hopeless: bool = False
    """Whether device leaves are evicted for a load that then finds no room."""

    evict_host_for_hopeless: bool = False
    """Whether host leaves are evicted for a backup that then finds no room."""

    last_host_node: Literal["backed", "best"] = "backed"
    """Whether a match names the deepest node with a host copy, or its best node, as `last_host_node`."""

    eviction_asks: Literal["shortfall", "need"] = "shortfall"
    """Whether room for a copy is made by evicting what is missing, or as much as the copy needs in all."""

    commit_adopts: bool = True
    """Whether fetched pages become the host copy of a node that has none; if not, they and what hangs below go back."""

    commit_stamps_anchor: bool = False
    """Whether a commit of a prefetch with host pages makes its anchor used, also if nothing was read."""

    fetched_priority: Literal["none", "inherited"] = "none"
    """Whether a fetched node has no priority, or that of the node above it, below the root the least there is."""

    prefetch_allocation: Literal["after", "before"] = "after"
    """Whether a prefetch takes its host pages once the query is answered, or for all it asks for before."""

    prefetch_state: Literal["pages", "submission"] = "pages"
    """Whether a prefetch takes its state slot with its host pages, or in any case when it is asked for."""

    unread_slot: Literal["left", "given_up"] = "left"
    """Whether the state slot of a prefetch that is closed before it reads is left to it, or given up at once."""

    prefetch_clock: Literal["submission", "first_poll"] = "submission"
    """When the time of a prefetch begins: at submission, or when its request first asks in vain."""

    prefetch_capacity: Literal["half_host", "host_minus_device", "host_minus_device_clamped"] = "half_host"
    """How many pages may be asked for at once: half the host pool, or 0.8 of what it has more than the device."""

    prefetch_limit: Literal["submission", "query"] = "submission"
    """Whether a prefetch over the limit is refused, or its query answers that nothing is there without asking."""

    prefetch_truncates: bool = True
    """Whether a prefetch with too little room is cut to what there is; else refused, or revoked after its query."""

    truncation_counts_less: bool = False
    """Whether a prefetch that was shortened for want of room counts against the limit with what is left of it."""

    prefetch_timeout: TimeoutShape = "capped"
    """Whether the time of a prefetch grows with its tokens up to the maximum, without one, or not at all."""

    read_tail: Literal["end_applied", "io_end"] = "end_applied"
    """When pages that were not read are given up: as the end is applied, or by the worker when its I/O ends."""

    prefetch_progress: Literal["polled", "live"] = "polled"
    """Whether the scheduler knows of the batches that a poll applied, or of all that have ended."""

    prefetch_commit: Literal["poll", "progress"] = "poll"
    """Whether a complete prefetch is committed by the poll that applies its end, or when its request asks."""

    cancelled_query: Literal["answers_0", "goes_on"] = "answers_0"
    """What a query answers whose prefetch was told to stop meanwhile."""

    give_back: Literal["at_once", "queued"] = "at_once"
    """Whether pages that an abort or a commit gives up are free at once or with a later poll."""

    storage_put: Literal["backed_up", "hit"] = "backed_up"
    """When a node is put: as its copy to host is applied, or at later hits, until a write of it has ended whole."""

    write_back_offers: bool = True
    """Whether what an eviction has copied to host inside its step is owed to storage."""

    storage_retries: Annotated[int, Field(ge=1)] = 3
    """How often a page is offered to storage in all, before it is reported and given up."""

    backed_up_counts: Literal["pages", "batches"] = "pages"
    """Whether a batch that was cut short counts as backed up with the pages that it put, or not at all."""

    reset_waits: Annotated[int, Field(ge=0)] | None = None
    """After how many milliseconds of waiting a reset ends storage work by force; None: never (HC-LIFE-02)."""

    attach_again: Literal["settings", "policy"] = "settings"
    """Whether an attach to the attached backend changes all its settings, or the prefetch policy alone."""

    attach_offers: bool = True
    """Whether what is on host at the time of an attach is owed to storage."""

    hash_namespace: bool = True
    """Whether the storage hash depends on the namespace; if not, pages in one never touch storage."""

    event_namespace: bool = True
    """Whether the block hashes of events depend on the namespace."""

    match_stamps_states: Literal["end", "path"] = "end"
    """Whether a match makes the state at its end used, or match, insert and commit those of all nodes they pass."""

    split_stamps_state: bool = False
    """Whether a split that makes both halves used makes the state used that stays with the lower one."""

    load_matches: bool = False
    """Whether a load makes its path used, whether or not there is room: its caller matches it first."""

    load_under_load: Literal["granted", "refused"] = "granted"
    """Whether a state may be loaded to a node whose KV another load still brings that began under write_back."""

    load_keeps_state_above: bool = False
    """Whether the state of the node below which a load hangs is kept while room is made for it."""

    dead_ends: Literal["leave", "stay"] = "leave"
    """Whether a leaf without state leaves the tree, and no leaf is demoted to become one, or KV alone decides both."""

    late_states: Literal["hit", "insert"] = "hit"
    """Which backup takes a late state to host: that of a hit, for all nodes of the path, or that of its insert."""

    host_states: Literal["used", "arrived"] = "used"
    """Whether states on host go by their last use, or those there alone by when they came to be there or unpinned."""

    lock_state: Literal["there", "to_come"] = "there"
    """Whether a pin names the state at its end if there is one, or in any case, so that it holds one that comes."""

    branching: Literal["resident", "cached"] = "resident"
    """Whether a match names a branching place as far as KV is resident, or as far as it is on any tier."""

    write_back_states: Literal["copied", "lost"] = "copied"
    """Whether write_back copies a node that stays, KV and state, before it evicts its state, or that is lost."""

    state_copy: Literal["submitted", "blocking"] = "submitted"
    """Whether the copy of a state for a request is submitted and ends later, or ends inside the step."""

    @model_validator(mode="after")
    def _do_not_clash(self) -> "Rules":
        for clash in CLASHES:
            if clash.is_in(vars(self)):
                raise ValueError(str(clash))
        return self

    def hits_before_backup(self, policy: WritePolicy) -> int:
        """The number of hits at which `policy` backs a node up."""
        if self.write_through_threshold is not None:
            return self.write_through_threshold
        return self.hits_before_put(policy)

    def hits_before_put(self, policy: WritePolicy) -> int:
        """The number of hits from which `policy` puts a node to storage, by the rule `storage_put` = `hit`."""
        return 1 if policy == "write_through" else self.selective_hits


class Sizes(Frozen):
    """How large pools and pages are."""

    device_pages: Annotated[int, Field(ge=1, le=10**8)] = 6
    host_pages: Annotated[int, Field(ge=1, le=10**8)] = 6
    page_size: Annotated[int, Field(ge=1, le=4096)] = 1
    """Tokens a page; in bigram mode pairs a page."""

    load_back_threshold: Annotated[int, Field(ge=0)] = 0
    """A load of fewer tokens is refused (upstream: 10)."""

    storage_batch: Annotated[int, Field(ge=1)] = 2
    """Pages in one read or write of storage (upstream: 128)."""

    device_states: Annotated[int, Field(ge=1, le=10**6)] = 4
    """State slots of a hybrid model on device; likewise on host."""

    host_states: Annotated[int, Field(ge=1, le=10**6)] = 4
    state_chunk: Annotated[int, Field(ge=1)] = 1
    """Pages between two places at which a branch may be cached (upstream: mamba_cache_chunk_size, in tokens)."""


class Profile(Frozen):
    """What one cache is: its rules, its sizes, and whether it caches at all."""

    rules: Rules = Rules()
    sizes: Sizes = Sizes()
    bigram: bool = False
    draft: bool = False
    """Whether a draft model's pool mirrors the KV pool, page for page, from the start."""

    state: bool = False
    """Whether the model is a hybrid one: a node may own the recurrent state at its end beside its KV."""

    enabled: bool = True
    """A disabled cache answers every look-up empty and keeps nothing (upstream: disable_radix_cache)."""

    events: bool = True
    """Whether anything is published (upstream: enable_kv_cache_events)."""

    name: str = "reference/tiny"

    @property
    def components(self) -> tuple[Component, ...]:
        """What a node may own copies of: KV, and of a hybrid model state."""
        return (KV, STATE) if self.state else (KV,)

    @property
    def prefetch_capacity(self) -> int:
        """The number of tokens asked for from which a prefetch is refused (upstream: prefetch_capacity_limit)."""
        sizes, rule = self.sizes, self.rules.prefetch_capacity
        if rule == "half_host":
            return sizes.host_pages * sizes.page_size // 2
        more = int(0.8 * (sizes.host_pages - sizes.device_pages) * sizes.page_size)
        return max(0, more) if rule == "host_minus_device_clamped" else more

    @property
    def pool_sizes(self) -> dict[PoolName, int]:
        """Every pool that there is, and how many pages or slots it has."""
        sizes: dict[PoolName, int] = {KV_DEVICE: self.sizes.device_pages, KV_HOST: self.sizes.host_pages}
        if self.state:
            sizes |= {STATE_DEVICE: self.sizes.device_states, STATE_HOST: self.sizes.host_states}
        return sizes


RULES: dict[str, Rules] = {name: Rules.model_validate(given) for name, given in PRESETS.items()}
"""The rules of the reference and of releases of SGLang, by preset."""

SIZES: dict[str, Sizes] = {
    "tiny": Sizes(),
    "small": Sizes(device_pages=24, host_pages=32, page_size=4, load_back_threshold=4, storage_batch=8),
    "large": Sizes(device_pages=20_000, host_pages=60_000, page_size=64, load_back_threshold=10, storage_batch=128),
}


def profile_named(name: str) -> Profile:
    """The profile that `RULES`, `SIZES` or `RULES/SIZES` names; either part may be left out.

    Raises ValueError with the known names if one is unknown.
    """
    rules, sizes = "reference", "tiny"
    for part in name.split("/"):
        if part in RULES:
            rules = part
        elif part in SIZES:
            sizes = part
        else:
            known = ", ".join([*RULES, *SIZES])
            raise ValueError(f"unknown profile {part!r}, expected one of {known}, or RULES/SIZES")
    return Profile(rules=RULES[rules], sizes=SIZES[sizes], name=f"{rules}/{sizes}")
