"""The adapter for SGLang's HiRadixCache: its options, and what is said of one that does not fit."""

from hashlib import sha256
from pathlib import Path

import pytest

from hicache_ref.adapters.sglang_hiradix import make
from hicache_ref.adapters.sglang_hiradix.wheels import root_of
from hicache_ref.vocabulary.adapter import AdapterError
from hicache_ref.vocabulary.operations import STORAGE_OPERATIONS, Evict, Forward, MatchPrefix, TakePages, WriteDone
from hicache_ref.vocabulary.outcomes import Done, Matched
from hicache_ref.vocabulary.profile import Profile, Rules, Sizes

pytest.importorskip("torch")

from hicache_ref.search.simpler import EVERYTHING
from tests.adapters.hiradix_driven import ALL_RELEASES, Driven, child

SIZES = Sizes(device_pages=8, host_pages=24, storage_batch=2)

PRESETS = {
    "0.5.1.post3": "sglang-0.5.1",
    "0.5.2": "sglang-0.5.2",
    "0.5.6": "sglang-0.5.6",
    "0.5.9": "sglang-0.5.9",
    "0.5.10.post1": "sglang-0.5.9",
    "0.5.15": "sglang-0.5.15",
    "0.5.16": "sglang-0.5.16",
    "0.5.20": "sglang-0.5.20",
}


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"colour": "red"}, "unknown option 'colour' of sglang-hiradix, expected one of version, source"),
        ({"version": "0.4"}, "unknown version '0.4' of sglang-hiradix, expected one of 0.5.1.post3"),
        ({"storage": "mooncake"}, "option storage=mooncake of sglang-hiradix, expected file or off"),
        ({"events": "yes"}, "expected on or off"),
        ({"source": ".", "version": "0.5.2"}, "expected one of them"),
        ({"source": "nowhere"}, "no sglang/srt/mem_cache/hiradix_cache.py in nowhere or nowhere/python"),
    ],
)
def test_an_option_that_does_not_fit_is_named(options: dict[str, str], said: str) -> None:
    """Goal: one line that says what was expected. Method: one wrong option at a time, no process started."""
    with pytest.raises(AdapterError) as error:
        make(options, fetch=False, step_timeout=1.0)
    assert said in str(error.value)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"controller": "nowhere.py"}, "no file nowhere.py, expected a Python source for option controller"),
        ({"preload": "nowhere.py"}, "no file nowhere.py, expected a Python source for option preload"),
        ({"batch": "0"}, "option batch=0 of sglang-hiradix, expected a positive number of pages"),
        ({"batch": "two"}, "option batch=two"),
    ],
)
def test_a_file_or_number_that_does_not_fit_is_named(tmp_path: Path, options: dict[str, str], said: str) -> None:
    """Goal: as above. Method: beside a source that has the module."""
    module = tmp_path / "sglang" / "srt" / "mem_cache" / "hiradix_cache.py"
    module.parent.mkdir(parents=True)
    module.touch()
    with pytest.raises(AdapterError) as error:
        make({"source": str(tmp_path)} | options, fetch=False, step_timeout=1.0)
    assert said in str(error.value)


def test_a_source_tree_that_lacks_a_class_is_told_what_it_lacks(tmp_path: Path) -> None:
    """Goal: an unknown layout is said to be one. Method: a tree with an empty module of the name."""
    for name in ("mem_cache/hiradix_cache", "mem_cache/radix_cache", "mem_cache/hicache_storage"):
        module = tmp_path / "sglang" / "srt" / f"{name}.py"
        module.parent.mkdir(parents=True, exist_ok=True)
        module.write_text("x = 1\n")
    adapter = make({"source": str(tmp_path)}, fetch=False, step_timeout=60.0)
    with pytest.raises(AdapterError, match=r"no module sglang\.srt\.managers\.cache_controller in the source tree"):
        adapter.describe()
    adapter.close()


@pytest.mark.peers
@pytest.mark.parametrize("version", ALL_RELEASES)
def test_a_release_is_known_by_its_classes(version: str) -> None:
    """Goal: the preset is told from the source, not from the version. Method: the wheel's folder as a source."""
    child(version=version)
    _, described = child(source=str(root_of(version, fetch=False)))
    assert PRESETS[version] == described.profile
    assert "HiRadixCache, HiCacheController, HiCacheFile" in described.version
    assert described.version.endswith(f"most like {PRESETS[version].removeprefix('sglang-')})")
    assert PRESETS[version] == child(version=version)[1].profile


@pytest.mark.peers
def test_old_releases_lack_operations() -> None:
    """Goal: what a release has no call for is not asked of it. Method: descriptions of three of them."""
    first, second, last = (child(version=version)[1] for version in ("0.5.1.post3", "0.5.2", "0.5.20"))
    assert {"abort", "clear_storage", "detach"} == last.operations - first.operations
    assert {"detach"} == last.operations - second.operations
    between = [version for version in ALL_RELEASES if "terminate" in child(version=version)[1].operations]
    assert ["0.5.9", "0.5.10.post1", "0.5.15", "0.5.16"] == between
    assert {"lru"} == first.evictions
    assert (False, True) == (second.events, last.events)


@pytest.mark.peers
def test_without_storage_there_is_none() -> None:
    """Goal: option storage=off. Method: compare operations."""
    _, off = child(version="0.5.20", storage="off")
    assert STORAGE_OPERATIONS - {"terminate"} == child(version="0.5.20")[1].operations - off.operations


@pytest.mark.peers
def test_a_controller_of_ones_own_takes_the_place_of_the_wheels(tmp_path: Path) -> None:
    """Goal: option controller. Method: one whose backups always fail."""
    child(version="0.5.20")
    file = root_of("0.5.20", fetch=False) / "sglang" / "srt" / "managers" / "cache_controller.py"
    mine = tmp_path / "mine.py"
    mine.write_text(file.read_text() + "\n\nHiCacheController.write = lambda self, *args, **kwargs: None\n")
    driven = Driven(SIZES, controller=str(mine))
    driven.insert(1)
    assert [None] == [each.host for each in driven.see().segments]


@pytest.mark.peers
def test_a_file_is_run_before_the_first_cache_is_made(tmp_path: Path) -> None:
    """Goal: option preload plants what one likes. Method: a match that never finds anything."""
    child(version="0.5.20")
    file = tmp_path / "plant.py"
    file.write_text(
        "from sglang.srt.mem_cache.hiradix_cache import HiRadixCache\n"
        "HiRadixCache.match_prefix = lambda self, params: self._empty_match_result\n"
    )
    driven = Driven(SIZES, preload=str(file))
    hashed = sha256(file.read_bytes()).hexdigest()[:16]
    assert f"0.5.20 with preload sha256:{hashed}" == child(version="0.5.20", preload=str(file))[1].release
    driven.insert(1)
    found = driven(MatchPrefix(key=driven.key(1)))
    assert isinstance(found, Matched)
    assert () == found.device


@pytest.mark.peers
@pytest.mark.parametrize(("page_size", "count"), [(1, 2), (4, 1)])
def test_a_page_that_comes_twice_in_one_release_is_free_twice_as_upstream(
    page_size: int, count: int, tmp_path: Path
) -> None:
    """Goal: a pass hides no double free. Method: an eviction under one names its pages twice; page sizes differ."""
    child(version="0.5.20")
    file = tmp_path / "plant.py"
    file.write_text(
        "import torch\n"
        "from sglang.srt.managers.cache_controller import HiCacheController\n"
        "def evict_device(self, slots):\n"
        "    self.mem_pool_device_allocator.free(torch.cat((slots, slots)))\n"
        "    return len(slots)\n"
        "HiCacheController.evict_device = evict_device\n"
    )
    driven = Driven(SIZES.model_copy(update={"page_size": page_size}), preload=str(file))
    driven.insert(1)
    driven.back_up((1,))
    for operation in (TakePages(rid="s", n=1), Forward(rid="s", key=driven.key(1, 2), start=1), Evict(n=1)):
        driven(operation)
    seen = driven.see()

    assert count == len(set(seen.held_device)) + len(set(seen.free_device) & set(seen.held_device))


@pytest.mark.peers
@pytest.mark.parametrize("version", ["0.5.1.post3", "0.5.2", "0.5.9", "0.5.20"])
def test_the_batch_is_as_the_option_says(version: str) -> None:
    """Goal: option batch, however a release keeps its number. Method: a node of three pages is written in one."""
    driven = Driven(SIZES, version=version, batch="3")
    driven.attach()
    driven.insert(1, 2, 3)
    driven.back_up((1, 2, 3))
    if version == "0.5.1.post3":
        # There a node is offered when it is used again.
        driven.insert(1, 2, 3)
    assert Done() == driven(WriteDone(id=f"b:{driven.key(1, 2, 3)}", pages=3))
    assert 1 == len(driven(EVERYTHING).writes)


@pytest.mark.peers
@pytest.mark.parametrize(
    ("profile", "said"),
    [
        (Profile(rules=Rules(eviction="slru"), name="here"), "eviction is slru, expected one of lru"),
        (Profile(rules=Rules(), bigram=True, name="here"), "this release has no bigram keys"),
        (Profile(rules=Rules(), enabled=False, name="here"), "a disabled cache is never made"),
        (Profile(rules=Rules(), events=False, name="here"), "events are switched by the option"),
        (Profile(rules=Rules(eviction_counts="hits"), name="here"), "expected 'node' as in sglang-0.5.2"),
    ],
)
def test_a_profile_that_the_release_does_not_follow_is_named(profile: Profile, said: str) -> None:
    """Goal: no rule is silently ignored. Method: profiles that 0.5.2 cannot follow."""
    adapter, _ = child(version="0.5.2")
    with pytest.raises(AdapterError, match=said):
        adapter.reset(profile)


@pytest.mark.peers
def test_a_release_is_pinned_as_long_as_nothing_in_it_is_changed(tmp_path: Path) -> None:
    """Goal: what can have been repaired is no alarm. Method: a wheel as it is, and with one thing changed at a time."""
    empty = tmp_path / "empty.py"
    empty.touch()
    source = str(root_of("0.5.20", fetch=False))
    assert [True, True] == [child(**options)[1].pinned for options in ({}, {"storage": "off"})]
    changes = ({"source": source}, {"preload": str(empty)}, {"batch": "1"})
    assert [False] * 3 == [child(**options)[1].pinned for options in changes]
