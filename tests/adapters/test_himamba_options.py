"""The adapter for SGLang's HiMambaRadixCache: its options, and what is said of one that does not fit."""

from pathlib import Path

import pytest

from hicache_ref.adapters.sglang_himamba import make
from hicache_ref.adapters.sglang_himamba.wheels import root_of
from hicache_ref.vocabulary.adapter import AdapterError
from hicache_ref.vocabulary.operations import STATE_OPERATIONS, STORAGE_OPERATIONS, Evict
from hicache_ref.vocabulary.outcomes import Evicted
from hicache_ref.vocabulary.profile import RULES, Profile, Rules, Sizes

pytest.importorskip("torch")

from tests.adapters.himamba_driven import ALL_RELEASES, Driven, child

PRESETS = {
    "0.5.10.post1": "sglang-himamba-0.5.10",
    "0.5.15": "sglang-himamba-0.5.15",
    "0.5.16": "sglang-himamba-0.5.16",
    "0.5.17": "sglang-himamba-0.5.16",
}
_LISTED = "a-listing/python/sglang/srt/mem_cache/hi_mamba_radix_cache.py\n\n"


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"colour": "red"}, "unknown option 'colour' of sglang-himamba, expected one of version, source"),
        ({"version": "0.5.20"}, "unknown version '0.5.20' of sglang-himamba, expected one of 0.5.10.post1"),
        ({"storage": "mooncake"}, "option storage=mooncake of sglang-himamba, expected file or off"),
        ({"source": "nowhere"}, "no sglang/srt/mem_cache/hi_mamba_radix_cache.py in nowhere or nowhere/python"),
        ({"tree": "nowhere.py", "source": "."}, "no sglang/srt/mem_cache/hi_mamba_radix_cache.py in ."),
    ],
)
def test_an_option_that_does_not_fit_is_named(options: dict[str, str], said: str) -> None:
    """Goal: one line that says what was expected. Method: one wrong option at a time, no process started."""
    with pytest.raises(AdapterError) as error:
        make(options, fetch=False, step_timeout=1.0)
    assert said in str(error.value)


@pytest.mark.peers
@pytest.mark.parametrize("version", ALL_RELEASES)
def test_a_release_says_what_it_is(version: str) -> None:
    """Goal: walks know what to ask for. Method: the description of each release, with storage and without."""
    description = child(version=version)[1]
    assert ("sglang-himamba", version, PRESETS[version], "always") == (
        description.name, description.version, description.profile, description.hybrid
    )  # fmt: skip
    assert ((1,), {"lru"}) == (description.page_sizes, description.evictions)
    assert STATE_OPERATIONS | STORAGE_OPERATIONS <= description.operations
    assert not STORAGE_OPERATIONS & child(version=version, storage="off")[1].operations


@pytest.mark.peers
@pytest.mark.parametrize(
    ("profile", "said"),
    [
        (Profile(rules=RULES["sglang-himamba-0.5.15"]), "state is False, expected True"),
        (
            Profile(rules=RULES["sglang-himamba-0.5.15"], state=True, sizes=Sizes(page_size=2)),
            "page_size is 2, expected 1",
        ),
        (
            Profile(rules=Rules(eviction_counts="hits"), state=True),
            "rule backup_scope is 'chain', expected 'node_if_parent'",
        ),
    ],
)
def test_a_profile_that_cannot_be_followed_is_refused(profile: Profile, said: str) -> None:
    """Goal: no check under rules that the release does not have. Method: one thing that does not fit at a time."""
    adapter, _ = child(version="0.5.15")
    with pytest.raises(AdapterError, match=said):
        adapter.reset(profile)


@pytest.mark.peers
def test_a_tree_of_ones_own_takes_the_place_of_that_of_0_5_15(tmp_path: Path) -> None:
    """Goal: option tree, any suffix, a path as first line. Method: one that never evicts."""
    file = root_of("0.5.15", fetch=False) / "sglang" / "srt" / "mem_cache" / "hi_mamba_radix_cache.py"
    mine = tmp_path / "listed.txt"
    guard = "        if self.disable:\n            return EvictResult()"
    mine.write_text(_LISTED + file.read_text().replace(guard, "        return EvictResult()"))
    driven = Driven(tree=str(mine), storage="off")
    driven.insert(1)
    assert Evicted(freed=0) == driven(Evict(n=1))
    assert "0.5.15" == driven.description.version
    assert [mine] == list(tmp_path.iterdir())
