"""Who writes a page, and so what its objects are called: equal names, equal bytes.

A page's hash says which tokens it holds, not how: the same tokens are other bytes under another model, data type,
layout or share of the heads. All of that is in `StorageConfig`, and an object's key is a pure function of it and the
hash. Ranks that hold the same bytes share objects.
"""

import json
from functools import lru_cache
from hashlib import blake2b
from typing import Annotated, Any, Literal, Self, get_args

from pydantic import Field, JsonValue, PositiveInt, model_validator

from hicache_ref.vocabulary.base import Frozen
from hicache_ref.vocabulary.ids import PageHash

Layout = Literal[
    "layer_first", "page_first", "page_first_direct", "page_head", "page_first_kv_split", "page_unified"
]  # fmt: skip
LAYOUTS: tuple[Layout, ...] = get_args(Layout)
"""Orders of a host page's elements; the bytes differ, the hash does not."""

KV_POOL = "kv"
STATE_POOLS = frozenset({"mamba"})
"""Pools of recurrent state: cut by rank also where the attention pages are replicated, and never into K and V."""

Rank = Annotated[int, Field(ge=0)]
LabelName = Annotated[str, Field(pattern=r"^([a-zA-Z]|_[a-zA-Z0-9])[a-zA-Z0-9_]*$")]
"""The name of a label, as Prometheus takes it; those that begin with two underscores are its own."""

PLACE_LABELS = (
    "storage_backend", "tp_rank", "dp_rank", "pp_rank", "pp_size", "attn_cp_rank", "attn_cp_size",
)  # fmt: skip
"""Labels that say whose numbers are published, under upstream's names."""


class StorageConfig(Frozen):
    """One rank's place and the form of its pages (upstream: HiCacheStorageConfig)."""

    model_name: str
    page_size: PositiveInt
    """Tokens a page."""

    layout: Layout = "layer_first"
    dtype: str = "bfloat16"

    tp_rank: Rank = 0
    tp_size: PositiveInt = 1
    """Tensor parallel ranks; under attention DP those of one attention group."""

    pp_rank: Rank = 0
    pp_size: PositiveInt = 1
    cp_rank: Rank = 0
    cp_size: PositiveInt = 1
    """Context parallel ranks: each holds its own part of every page."""

    dp_rank: Rank = 0
    """The attention replica. Replicas hold the same bytes, so it is in no key."""

    replicated: bool = False
    """Whether all TP ranks hold the same attention pages (MLA), and share them."""

    kv_heads: PositiveInt | None = None
    """KV heads of the model, over all ranks. With fewer heads than ranks, ranks of one head share its objects."""

    head_dim: PositiveInt | None = None
    layers: PositiveInt | None = None
    """Layers of this pipeline stage."""

    split_k_v: bool = False
    """Whether K and V of a page are objects of their own (upstream: factor 2; mooncake: `_k`, `_v`)."""

    split_heads: bool = False
    tp_lcm_size: PositiveInt | None = None
    """With `split_heads`, a page is cut as if there were so many ranks, so that unequal `tp_size` share objects."""

    tag: str = ""
    """Tenant, revision of the weights, or what else must not be mixed."""

    metrics: bool = False
    """Whether the store is to measure its work (upstream: enable_storage_metrics); it names nothing (HC-STORE-42)."""

    metric_labels: dict[LabelName, str] = {}
    """What the operator adds to the labels of all that is published (upstream: extra_metric_labels)."""

    extra: dict[str, JsonValue] = {}
    """The backend's own options; they name nothing."""

    @model_validator(mode="after")
    def _ranks_within_sizes(self) -> "StorageConfig":
        for rank, size in (("tp_rank", "tp_size"), ("pp_rank", "pp_size"), ("cp_rank", "cp_size")):
            if getattr(self, rank) >= getattr(self, size):
                raise ValueError(f"{rank} is {getattr(self, rank)}, expected less than {size} = {getattr(self, size)}")
        return self

    @model_validator(mode="after")
    def _labels_add(self) -> "StorageConfig":
        for name in self.metric_labels:
            if name in PLACE_LABELS:
                raise ValueError(f"metric_labels has {name}, expected none of {', '.join(PLACE_LABELS)}")
        return self

    @model_validator(mode="after")
    def _heads_divide(self) -> "StorageConfig":
        heads, ranks = self.kv_heads or self.tp_size, self.tp_size
        if not self.replicated and max(heads, ranks) % min(heads, ranks):
            raise ValueError(f"kv_heads = {heads} and tp_size = {ranks}, expected one to divide the other")
        if not self.split_heads:
            return self
        if self.layout != "page_head" or not self.split_k_v or self.replicated:
            raise ValueError("split_heads, expected layout page_head, split_k_v and no replicated pages with it")
        if self.tp_lcm_size is None or self.tp_lcm_size % self.tp_size or (self.kv_heads or 0) % self.tp_lcm_size:
            raise ValueError(f"tp_lcm_size = {self.tp_lcm_size}, expected a multiple of tp_size that divides kv_heads")
        return self

    @classmethod
    def of_rank(cls, rank: int, ranks: int, *, attention_dp: int = 1, cp_size: int = 1, **fields: Any) -> Self:
        """The configuration of one of so many tensor parallel ranks, from which attention makes groups.

        With `attention_dp` replicas of the attention, and `cp_size` context parallel ranks in each, the share of the
        heads is that of the rank's group; which group it is names nothing (HC-STORE-38). Raises ValueError where the
        ranks do not make whole groups (upstream: compute_dp_attention_world_info).
        """
        groups = attention_dp * cp_size
        if not 0 <= rank < ranks or ranks % groups:
            raise ValueError(
                f"rank {rank} of {ranks}, expected one of whole groups, {attention_dp} x {cp_size} of them"
            )
        group, tp_rank = divmod(rank, ranks // groups)
        dp_rank, cp_rank = divmod(group, cp_size)
        place: dict[str, Any] = {"tp_rank": tp_rank, "tp_size": ranks // groups, "cp_rank": cp_rank, "cp_size": cp_size}
        return cls(**fields, **place, dp_rank=dp_rank)

    def shards(self, pool: str = KV_POOL) -> tuple[tuple[int, int], ...]:
        """The shares of the heads that this rank's page of `pool` is stored in, as (rank, size) each."""
        if pool in STATE_POOLS:
            return ((self.tp_rank, self.tp_size),)
        if self.replicated:
            return ((0, 1),)
        if self.split_heads and self.tp_lcm_size:
            factor = self.tp_lcm_size // self.tp_size
            return tuple((self.tp_rank * factor + part, self.tp_lcm_size) for part in range(factor))
        if self.kv_heads and self.kv_heads < self.tp_size:
            return ((self.tp_rank * self.kv_heads // self.tp_size, self.kv_heads),)
        return ((self.tp_rank, self.tp_size),)

    def parts(self, pool: str = KV_POOL) -> tuple[str, ...]:
        """What a share of a page of `pool` is cut into: K and V, or nothing."""
        return ("_k", "_v") if self.split_k_v and pool not in STATE_POOLS else ("",)

    def form(self) -> tuple[str | int | None, ...]:
        """What decides about a page's bytes, beside the pool and the share of the heads."""
        return (
            self.model_name, self.tag, self.dtype, self.layout, self.page_size, self.kv_heads, self.head_dim,
            self.layers, self.split_k_v, self.pp_rank, self.pp_size, self.cp_rank, self.cp_size,
        )  # fmt: skip

    def __hash__(self) -> int:
        return hash((self.form(), self.tp_rank, self.tp_size, self.replicated))


def object_keys(config: StorageConfig, page_hash: PageHash, pool: str = KV_POOL) -> tuple[str, ...]:
    """The keys of the objects that a page of `pool` is stored in, K before V, then by share of the heads.

    The name is upstream's file name and, since that leaves out data type, layout and more, a digest of everything that
    decides about the bytes. Without it `a/b` and `a-b` would also be one model (HC-STORE-37).
    """
    return tuple([page_hash + suffix for suffix in _suffixes(config, pool)])


@lru_cache(maxsize=256)
def _suffixes(config: StorageConfig, pool: str) -> tuple[str, ...]:
    named = "" if pool == KV_POOL else f".{pool}"
    return tuple(
        f"{named}{_upstream_suffix(config, pool, shard)}_{_digest(config, pool, shard)}{part}"
        for part in config.parts(pool)
        for shard in config.shards(pool)
    )


def _digest(config: StorageConfig, pool: str, shard: tuple[int, int]) -> str:
    """16 hex digits over all that decides about the bytes of this share."""
    text = json.dumps([config.form(), pool, shard])
    return blake2b(text.encode(), digest_size=8).hexdigest()


def _upstream_suffix(config: StorageConfig, pool: str, shard: tuple[int, int]) -> str:
    """Model and place, as SGLang's file backend writes them (HiCacheFile)."""
    suffix = "_" + config.model_name.replace("/", "-")
    if not config.replicated or pool in STATE_POOLS:
        suffix += "_{}_{}".format(*shard)
    if config.pp_size > 1:
        suffix += f"_{config.pp_size}_{config.pp_rank}"
    if config.cp_size > 1:
        suffix += f"_cp{config.cp_rank}_{config.cp_size}"
    return suffix


def sglang_file_name(config: StorageConfig, page_hash: PageHash, pool: str = KV_POOL) -> str:
    """The name of the file in which SGLang's file backend keeps the page (0.5.15 and 0.5.23, without DCP).

    It says nothing of data type, layout, page size or tag: only a folder that one form of pages uses is safe.
    """
    named = "" if pool == KV_POOL else f".{pool}"
    return f"{page_hash}{named}{_upstream_suffix(config, pool, (config.tp_rank, config.tp_size))}.bin"


def sglang_keys(config: StorageConfig, page_hash: PageHash, pool: str = KV_POOL) -> tuple[str, ...]:
    """As `object_keys`, for a folder that SGLang's file backend uses too: `files://...?format=sglang`."""
    return (sglang_file_name(config, page_hash, pool).removesuffix(".bin"),)
