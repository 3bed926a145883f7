"""Every rule is worth having: a stored trace tells two of its values apart, and none is a fault in disguise."""

import pytest

from hicache_ref.search.finding import Recorded
from hicache_ref.search.minimise import replay
from hicache_ref.trace import read_trace
from hicache_ref.vocabulary.host_pool import HostPool
from hicache_ref.vocabulary.profile import RULES, Rules, profile_named
from tests.rules.telling_apart import FOLDER, OTHER, beside


def test_every_rule_has_a_trace() -> None:
    """Goal: no knob without evidence. Method: the fields of Rules against the traces beside this file."""
    assert set(Rules.model_fields) == set(OTHER) == {path.stem for path in FOLDER.glob("*.jsonl")}


@pytest.mark.parametrize("rule", sorted(OTHER))
def test_the_trace_tells_the_values_apart(rule: str) -> None:
    """Goal: the rule changes what can be seen. Method: replay one value's model beside the other's."""
    trace = read_trace(FOLDER / f"{rule}.jsonl")
    steps = tuple(Recorded(step.op) for step in trace.steps)
    result = replay(steps, lambda: beside(rule, trace.header.profile))
    assert result.finding is not None
    assert result.finding.source == "difference"
    assert len(steps) == len(result.steps)


@pytest.mark.parametrize("preset", sorted(RULES))
def test_presets_are_found_by_name(preset: str) -> None:
    """Goal: a preset's name and sizes can be said together. Method: look it up both ways."""
    assert RULES[preset] == profile_named(preset).rules == profile_named(f"{preset}/small").rules


def test_unknown_profile_names_the_known_ones() -> None:
    """Goal: a typo is answered with the names. Method: ask for one that is not there."""
    with pytest.raises(ValueError, match=r"unknown profile 'sglang-0\.4'.*sglang-0\.5\.23"):
        profile_named("sglang-0.4")


def test_host_pool_size() -> None:
    """Goal: ratio, bytes and pages give the pages they say. Method: worked examples, both roundings (HC-CONF-06)."""
    assert 200 == HostPool(ratio=2.0).count(100, page_size=64, bytes_per_token=10)
    assert 201 == HostPool(ratio=2.0, rounding="up_one").count(100, page_size=64, bytes_per_token=10)
    assert 15 == HostPool(size_bytes=10_000).count(100, page_size=64, bytes_per_token=10)
    assert 7 == HostPool(pages=7).count(100, page_size=64, bytes_per_token=10)


def test_host_pool_rounds_down() -> None:
    """Goal: no page that is not whole. Method: parts of a token and of a page that nearly make one more."""
    assert 199 == HostPool(ratio=1.999).count(100, page_size=64, bytes_per_token=10)
    assert 200 == HostPool(ratio=1.999, rounding="up_one").count(100, page_size=64, bytes_per_token=10)
    # 1.9 * 3 tokens are 5.7: rounded to 6 they would be two pages.
    assert 1 == HostPool(ratio=1.9).count(1, page_size=3, bytes_per_token=10)
    assert 1 == HostPool(size_bytes=127 * 10).count(100, page_size=64, bytes_per_token=10)
    assert 1 == HostPool(size_bytes=128 * 10 - 1).count(100, page_size=64, bytes_per_token=10)
    assert 2 == HostPool(size_bytes=128 * 10).count(100, page_size=64, bytes_per_token=10)


def test_host_pool_leaves_the_reserve() -> None:
    """Goal: what others need stays theirs. Method: 4,480 bytes that just fit, then one byte too few, either way."""
    pool, reserved = HostPool(pages=7), HostPool(pages=7, reserve_bytes=1000)

    assert 7 == pool.count(100, page_size=64, bytes_per_token=10, available_bytes=4480)
    assert 7 == reserved.count(100, page_size=64, bytes_per_token=10, available_bytes=5480)
    with pytest.raises(ValueError, match="needs 4480 bytes, only 4479 may be used"):
        pool.count(100, page_size=64, bytes_per_token=10, available_bytes=4479)
    with pytest.raises(ValueError, match="needs 4480 bytes, only 4479 may be used"):
        reserved.count(100, page_size=64, bytes_per_token=10, available_bytes=5479)


def test_host_pool_refuses_what_cannot_be() -> None:
    """Goal: an empty or too large pool is refused before anything is made. Method: both, and two sizes at once."""
    with pytest.raises(ValueError, match="0 pages, expected at least 1"):
        HostPool(size_bytes=10).count(100, page_size=64, bytes_per_token=10)
    with pytest.raises(ValueError, match="needs 4480 bytes, only 4000"):
        HostPool(pages=7, reserve_bytes=96).count(100, page_size=64, bytes_per_token=10, available_bytes=4096)
    with pytest.raises(ValueError, match="exactly one"):
        HostPool(pages=7, ratio=1.0)
