"""Which part of a prefix can be used when several pools must have theirs."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hicache_ref.storage.pools import PoolPresence, restorable, usable_prefix, whole_pages

presences = st.builds(
    PoolPresence,
    name=st.sampled_from(["mamba", "swa", "draft"]),
    present=st.lists(st.booleans(), max_size=9).map(tuple),
    policy=st.sampled_from(["all_pages", "trailing_pages"]),
    trailing=st.integers(0, 4),
)


@given(st.integers(0, 8), st.lists(presences, max_size=3, unique_by=lambda pool: pool.name))
def test_the_longest_length_that_all_restore(kv_pages: int, pools: list[PoolPresence]) -> None:
    """Goal: HC-STORE-46. Method: every length, tried against what each policy asks for, word by word."""

    def can(pool: PoolPresence, length: int) -> bool:
        first = 0 if pool.policy == "all_pages" else max(0, length - max(1, pool.trailing))
        return all(pool.present[first:length]) and len(pool.present) >= length

    lengths = [n for n in range(1, kv_pages + 1) if all(can(pool, n) for pool in pools)]
    hits = usable_prefix(kv_pages, pools)

    assert (tuple(lengths), max(lengths, default=0)) == (hits.restorable, hits.usable)
    assert {"kv": kv_pages} | {pool.name: max(restorable(kv_pages, pool), default=0) for pool in pools} == hits.pages
    assert hits.usable <= usable_prefix(kv_pages, pools, "minimum").usable


@pytest.mark.parametrize(
    ("present", "policy", "trailing", "lengths"),
    [
        ("1110", "all_pages", 1, {1, 2, 3}),
        ("0111", "all_pages", 1, set()),
        ("0010", "trailing_pages", 1, {3}),
        ("0010", "trailing_pages", 0, {3}),
        ("0110", "trailing_pages", 2, {3}),
        ("1101", "trailing_pages", 2, {1, 2}),
        ("1111", "trailing_pages", 9, {1, 2, 3, 4}),
        ("", "trailing_pages", 1, set()),
    ],
)
def test_what_one_pool_can_restore(present: str, policy: str, trailing: int, lengths: set[int]) -> None:
    """Goal: the policies as upstream states them. Method: a prefix of four KV pages, case by case."""
    pool = PoolPresence.model_validate(
        {"name": "p", "present": [each == "1" for each in present], "policy": policy, "trailing": trailing}
    )

    assert lengths == restorable(4, pool)


def test_the_minimum_can_be_nothing_that_anyone_restores() -> None:
    """Goal: why lengths are intersected. Method: two pools whose longest lengths differ; the older rule's answer."""
    one = PoolPresence(name="a", present=(False, False, True, False, True), policy="trailing_pages")
    two = PoolPresence(name="b", present=(False, True, True, True, False), policy="trailing_pages")

    assert (3, (3,)) == (usable_prefix(5, [one, two]).usable, usable_prefix(5, [one, two]).restorable)
    assert 4 == usable_prefix(5, [one, two], "minimum").usable


@given(st.lists(st.booleans(), max_size=12), st.integers(1, 4))
def test_a_page_is_all_of_its_objects(objects: list[bool], per_page: int) -> None:
    """Goal: HC-STORE-45. Method: answers for objects, cut into pages by hand."""
    objects = objects[: len(objects) // per_page * per_page]
    pages = [objects[start : start + per_page] for start in range(0, len(objects), per_page)]

    assert [False not in page for page in pages] == whole_pages(objects, per_page)
