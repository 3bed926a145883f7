"""Keys of objects: equal names, equal bytes; other bytes, other names."""

from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from hicache_ref.storage.config import (
    LAYOUTS,
    PLACE_LABELS,
    STATE_POOLS,
    StorageConfig,
    object_keys,
    sglang_file_name,
    sglang_keys,
)
from hicache_ref.storage.measured import labels

HASH = "ab" * 32
BASE: dict[str, Any] = {"model_name": "org/model", "page_size": 16}


@st.composite
def ranks(draw: st.DrawFn, name: str, most: int = 4) -> dict[str, int]:
    """A place among so many."""
    size = draw(st.sampled_from([1, 2, most]))
    return {f"{name}_size": size, f"{name}_rank": draw(st.integers(0, size - 1))}


@st.composite
def fields(draw: st.DrawFn) -> dict[str, Any]:
    """The fields of a configuration that can be."""
    chosen: dict[str, Any] = {
        "model_name": draw(st.sampled_from(["a/b", "a-b", "a", "a_0_2"])),
        "page_size": draw(st.sampled_from([1, 16])),
        "layout": draw(st.sampled_from(LAYOUTS)),
        "dtype": draw(st.sampled_from(["bfloat16", "float16", "fp8"])),
        "replicated": draw(st.booleans()),
        "split_k_v": draw(st.booleans()),
        "tag": draw(st.sampled_from(["", "tenant"])),
        "dp_rank": draw(st.integers(0, 1)),
        "kv_heads": draw(st.sampled_from([None, 2, 8])),
        "layers": draw(st.sampled_from([None, 12])),
        "extra": draw(st.sampled_from([{}, {"path": "x"}])),
        **draw(ranks("tp")),
        **draw(ranks("pp", 3)),
        **draw(ranks("cp", 3)),
    }
    if draw(st.booleans()):
        chosen |= {"split_heads": True, "layout": "page_head", "split_k_v": True, "replicated": False}
        chosen |= {"kv_heads": 8, "tp_lcm_size": draw(st.sampled_from([4, 8]))}
    return chosen


@st.composite
def pairs(draw: st.DrawFn) -> tuple[StorageConfig, StorageConfig]:
    """Two configurations, most of them close to each other."""
    first = draw(fields())
    second = draw(fields())
    kept = draw(st.sets(st.sampled_from(sorted(first)), min_size=len(first) - 4)) if draw(st.booleans()) else set()
    mixed = second | {name: value for name, value in first.items() if name in kept}
    try:
        return StorageConfig(**first), StorageConfig(**mixed)
    except ValidationError:
        return StorageConfig(**first), StorageConfig(**second)


def contents(config: StorageConfig) -> list[tuple[object, ...]]:
    """What is in each object of a page, told by what it is and not by who has it."""
    heads = Fraction(1) if config.replicated else Fraction(1, config.tp_size)
    first = Fraction(0) if config.replicated else heads * config.tp_rank
    if config.kv_heads and not config.replicated and config.kv_heads < config.tp_size:
        # One head is not cut: the ranks that share it hold all of it.
        heads = Fraction(1, config.kv_heads)
        first = heads * (config.tp_rank * config.kv_heads // config.tp_size)
    pieces = [(first, first + heads)]
    if config.split_heads:
        step = Fraction(1, config.tp_lcm_size or 1)
        pieces = [(first + step * n, first + step * (n + 1)) for n in range(int(heads / step))]
    stage = (Fraction(config.pp_rank, config.pp_size), Fraction(config.pp_rank + 1, config.pp_size))
    context = (Fraction(config.cp_rank, config.cp_size), Fraction(config.cp_rank + 1, config.cp_size))
    form = (config.model_name, config.tag, config.dtype, config.layout, config.page_size)
    form += (config.kv_heads, config.head_dim, config.layers, config.split_k_v)
    kinds = ("K", "V") if config.split_k_v else ("K and V",)
    return [(*form, kind, piece, stage, context) for kind in kinds for piece in pieces]


@given(pairs())
def test_keys_are_equal_where_bytes_are_interchangeable(pair: tuple[StorageConfig, StorageConfig]) -> None:
    """Goal: HC-STORE-37 and -38. Method: pairs of drawn configurations; keys against an own account of the contents."""
    first, second = pair
    for key, content in zip(object_keys(first, HASH), contents(first), strict=True):
        for other_key, other in zip(object_keys(second, HASH), contents(second), strict=True):
            assert (content == other) == (key == other_key)


@given(fields(), st.sampled_from(["kv", "draft", *sorted(STATE_POOLS)]))
def test_attention_replicas_share_all_objects(chosen: dict[str, Any], pool: str) -> None:
    """Goal: `dp_rank` is in no key (HC-STORE-38). Method: one rank's place in several replicas, in every pool."""
    keys = {object_keys(StorageConfig(**chosen | {"dp_rank": rank}), HASH, pool) for rank in (0, 1, 7)}
    theirs = {sglang_keys(StorageConfig(**chosen | {"dp_rank": rank}), HASH, pool) for rank in (0, 1, 7)}

    assert (1, 1) == (len(keys), len(theirs))


@pytest.mark.parametrize(("attention_dp", "cp_size"), [(1, 1), (2, 1), (4, 1), (8, 1), (1, 2), (2, 2), (4, 2)])
def test_the_share_of_a_rank_is_that_of_its_attention_group(attention_dp: int, cp_size: int) -> None:
    """Goal: attention groups share objects (HC-STORE-38). Method: all of 8 ranks; places, names, and a whole group."""
    configs = [StorageConfig.of_rank(rank, 8, attention_dp=attention_dp, cp_size=cp_size, **BASE) for rank in range(8)]
    size = 8 // attention_dp // cp_size

    assert [(dp, cp, tp, size) for dp in range(attention_dp) for cp in range(cp_size) for tp in range(size)] == [
        (each.dp_rank, each.cp_rank, each.tp_rank, each.tp_size) for each in configs
    ]
    names = [object_keys(each, HASH) for each in configs]
    assert names == names[: size * cp_size] * attention_dp
    assert size * cp_size == len(set(names))


@pytest.mark.parametrize(("rank", "attention_dp", "cp_size"), [(8, 1, 1), (-1, 1, 1), (0, 3, 1), (0, 4, 4)])
def test_a_rank_of_no_whole_group_is_refused(rank: int, attention_dp: int, cp_size: int) -> None:
    """Goal: no share for a rank that is not there. Method: ranks outside, and groups that do not divide 8."""
    with pytest.raises(ValueError, match=f"rank {rank} of 8, expected one of whole groups"):
        StorageConfig.of_rank(rank, 8, attention_dp=attention_dp, cp_size=cp_size, **BASE)


@given(pairs(), st.sampled_from([*sorted(STATE_POOLS), "draft"]))
def test_other_pools_share_nothing_that_differs(pair: tuple[StorageConfig, StorageConfig], pool: str) -> None:
    """Goal: the same for state and draft pages. Method: as above; state is cut by rank also where KV is replicated."""
    first, second = pair
    place = ("tp_rank", "tp_size") if pool in STATE_POOLS else ("dtype",)
    shared = set(object_keys(first, HASH, pool)) & set(object_keys(second, HASH, pool))

    assert not shared or all(getattr(first, name) == getattr(second, name) for name in ("dtype", "layout", *place))
    assert set() == set(object_keys(first, HASH, pool)) & set(object_keys(first, HASH))


@given(fields())
def test_the_key_is_a_function(chosen: dict[str, Any]) -> None:
    """Goal: no hidden state. Method: the same fields twice, a copy, and a copy that differs: none keeps the other's."""
    config = StorageConfig(**chosen)
    keys = object_keys(config, HASH)
    changed = config.model_copy(update={"dtype": "int4"})

    assert keys == object_keys(StorageConfig(**chosen), HASH) == object_keys(config.model_copy(), HASH)
    assert set() == set(keys) & set(object_keys(changed, HASH))
    assert len(keys) == len(set(keys)) == len(config.parts()) * len(config.shards())
    assert all(key.startswith(HASH) for key in keys)


def test_replicas_share_and_ranks_do_not() -> None:
    """Goal: MLA pages are stored once. Method: ranks of one model, with replicated pages and without."""
    mla = {object_keys(StorageConfig(**BASE, replicated=True, tp_rank=rank, tp_size=4), HASH) for rank in range(4)}
    mha = {object_keys(StorageConfig(**BASE, tp_rank=rank, tp_size=4), HASH) for rank in range(4)}
    few = {object_keys(StorageConfig(**BASE, kv_heads=2, tp_rank=rank, tp_size=4), HASH) for rank in range(4)}

    assert (1, 4, 2) == (len(mla), len(mha), len(few))


def test_split_heads_are_shared_by_unequal_ranks() -> None:
    """Goal: pages written by two ranks are read by four. Method: object keys of both sides, cut for four."""
    form = BASE | {"layout": "page_head", "split_k_v": True, "kv_heads": 8, "split_heads": True, "tp_lcm_size": 4}
    two = [key for rank in range(2) for key in object_keys(StorageConfig(**form, tp_rank=rank, tp_size=2), HASH)]
    four = [key for rank in range(4) for key in object_keys(StorageConfig(**form, tp_rank=rank, tp_size=4), HASH)]

    assert sorted(two) == sorted(four)
    assert 8 == len(set(four))


@pytest.mark.parametrize(
    ("changes", "pool", "name"),
    [
        ({}, "kv", f"{HASH}_org-model_0_1.bin"),
        ({"tp_rank": 3, "tp_size": 8}, "kv", f"{HASH}_org-model_3_8.bin"),
        ({"tp_rank": 3, "tp_size": 8, "replicated": True}, "kv", f"{HASH}_org-model.bin"),
        ({"tp_rank": 3, "tp_size": 8, "replicated": True}, "mamba", f"{HASH}.mamba_org-model_3_8.bin"),
        ({"pp_rank": 1, "pp_size": 2}, "draft", f"{HASH}.draft_org-model_0_1_2_1.bin"),
        ({"cp_rank": 1, "cp_size": 2, "pp_rank": 0, "pp_size": 4}, "kv", f"{HASH}_org-model_0_1_4_0_cp1_2.bin"),
    ],
)
def test_names_as_sglang_writes_them(changes: dict[str, Any], pool: str, name: str) -> None:
    """Goal: its folders can be read. Method: the rule of HiCacheFile, case by case, and ours that begins like it."""
    config = StorageConfig(**BASE, **changes)

    assert name == sglang_file_name(config, HASH, pool)
    assert (name.removesuffix(".bin"),) == sglang_keys(config, HASH, pool)
    assert object_keys(config, HASH, pool)[0].startswith(name.removesuffix(".bin") + "_")


@pytest.mark.parametrize(
    ("changes", "what"),
    [
        ({"tp_rank": 2, "tp_size": 2}, "tp_rank is 2, expected less than tp_size = 2"),
        ({"pp_rank": 1}, "pp_rank is 1, expected less than pp_size = 1"),
        ({"cp_rank": 4, "cp_size": 4}, "cp_rank is 4"),
        ({"kv_heads": 6, "tp_size": 4}, "kv_heads = 6 and tp_size = 4, expected one to divide the other"),
        ({"split_heads": True}, "split_heads, expected layout page_head"),
        (
            {
                "split_heads": True,
                "layout": "page_head",
                "split_k_v": True,
                "kv_heads": 8,
                "tp_lcm_size": 3,
            },
            "tp_lcm_size = 3, expected a multiple of tp_size that divides kv_heads",
        ),
        # It divides the heads, and is no multiple of tp_size all the same.
        (
            {
                "split_heads": True,
                "layout": "page_head",
                "split_k_v": True,
                "kv_heads": 8,
                "tp_size": 4,
                "tp_lcm_size": 2,
            },
            "tp_lcm_size = 2, expected a multiple of tp_size that divides kv_heads",
        ),
        # It is a multiple, and divides no heads.
        (
            {
                "split_heads": True,
                "layout": "page_head",
                "split_k_v": True,
                "kv_heads": 8,
                "tp_size": 4,
                "tp_lcm_size": 12,
            },
            "tp_lcm_size = 12, expected a multiple of tp_size that divides kv_heads",
        ),
        ({"layout": "sideways"}, "layout"),
        ({"page_size": 0}, "page_size"),
        ({"colour": "red"}, "colour"),
    ],
)
def test_what_cannot_be_is_refused(changes: dict[str, Any], what: str) -> None:
    """Goal: no key for a rank that is not there. Method: one mistake each."""
    with pytest.raises(ValidationError, match=what):
        StorageConfig(**BASE | changes)


def test_no_two_ranks_publish_under_the_same_labels() -> None:
    """Goal: numbers of ranks do not merge. Method: every rank of 3 stages, 2 replicas, 2 context ranks, 2 shares."""
    places = [
        StorageConfig.of_rank(rank, 8, attention_dp=2, cp_size=2, **BASE, pp_rank=stage, pp_size=3)
        for stage in range(3)
        for rank in range(8)
    ]
    told = [labels(config, "files") for config in places]

    assert 24 == len({tuple(each.items()) for each in told})
    assert {PLACE_LABELS} == {tuple(each) for each in told}
    assert {
        "storage_backend": "files", "tp_rank": "1", "dp_rank": "1", "pp_rank": "2", "pp_size": "3",
        "attn_cp_rank": "1", "attn_cp_size": "2",
    } == told[-1]  # fmt: skip


def test_the_operators_labels_join_ours() -> None:
    """Goal: what an operator adds replaces nothing. Method: a new label, each of ours, and names that are none."""
    config = StorageConfig(**BASE, metric_labels={"cluster": "a"})
    assert ("cluster", "a") == list(labels(config, "files").items())[-1]
    for name in (*PLACE_LABELS, "", "1st", "a-b", "__name__"):
        with pytest.raises(ValidationError, match="metric_labels"):
            StorageConfig(**BASE, metric_labels={name: "a"})


def test_metrics_name_nothing() -> None:
    """Goal: HC-STORE-42 of our own keys. Method: the same page with and without."""
    config = StorageConfig(**BASE, metrics=True, metric_labels={"cluster": "a"})
    assert object_keys(StorageConfig(**BASE), HASH) == object_keys(config, HASH)
