"""Counters of storage in released caches: what a stand-in for their collector is told is told on (HC-STORE-14)."""

from pathlib import Path

import pytest

from hicache_ref.adapters.failures import ImplementationRaised
from hicache_ref.oracle.lockstep import Lockstep
from hicache_ref.requirements import Checker
from hicache_ref.search.finding import Found
from hicache_ref.vocabulary.operations import Attach, CopyDone, Detach, Operation, Progress, WriteDone
from hicache_ref.vocabulary.outcomes import Polled, Progressed, Refused
from hicache_ref.vocabulary.profile import RULES, Profile, Sizes
from hicache_ref.vocabulary.storage import StorageSettings

pytest.importorskip("torch")

from tests.adapters import himamba_driven, hiradix_driven
from tests.adapters.himamba_driven import inserting, key
from tests.adapters.hiradix_driven import EVERYTHING, Driven

pytestmark = pytest.mark.peers

COUNTING = hiradix_driven.ALL_RELEASES[1:]
"""Releases of HiRadixCache that have a collector."""

STAND_IN = "from hicache_ref.adapters.sglang_hiradix.metrics import TALLY, StorageCollector as Collector\n"
TWICE = f"""{STAND_IN}
def log_backuped_tokens(self, tokens):
    TALLY.backed_up += 2 * tokens
Collector.log_backuped_tokens = log_backuped_tokens
"""
"""Each write is reported to two collectors."""

ONE_NAME_ONE_METRIC = f"""{STAND_IN}
labelled, made = [], Collector.__init__
def refuse_a_second(self, labels):
    if labelled:
        raise ValueError("Duplicated timeseries in CollectorRegistry")
    labelled.append(labels)
    made(self, labels)
Collector.__init__ = refuse_a_second
"""
"""What prometheus_client does with a second metric of one name."""

SETTINGS = StorageSettings(prefetch_threshold=1, prefetch_policy="wait_complete")
IN_STORAGE = (
    Attach(settings=SETTINGS), *inserting("r", key(1, 2)), CopyDone(ticket="h:1.2"), EVERYTHING,
    WriteDone(id="b:1.2", pages=2), EVERYTHING,
)  # fmt: skip


def counted(told: object, counter: str) -> int:
    """The pages that the step counts."""
    assert isinstance(told, Polled | Progressed)
    count = getattr(told, counter)
    assert isinstance(count, int)
    return count


@pytest.mark.parametrize("version", COUNTING)
@pytest.mark.parametrize("page_size", [1, 4])
def test_a_write_counts_the_batches_that_were_put_whole(version: str, page_size: int) -> None:
    """Goal: the rule backed_up_counts is what releases do. Method: of two batches of two pages one is cut short."""
    driven = Driven.of(version, page_size=page_size)
    driven.attach()
    driven.insert(1, 2, 3, 4)
    driven.back_up((1, 2, 3, 4))
    name = f"b:{driven.key(1, 2, 3, 4)}"
    driven(WriteDone(id=name, pages=2))
    driven(WriteDone(id=name, pages=1))

    assert [2, 0] == [counted(driven(EVERYTHING), "backed_up") for _ in range(2)]


@pytest.mark.parametrize("version", COUNTING)
@pytest.mark.parametrize("page_size", [1, 4])
def test_a_fetch_counts_the_pages_that_are_new(version: str, page_size: int) -> None:
    """Goal: traffic is told and not what was asked for. Method: two of four pages are inserted while they are read."""
    driven = Driven.of(version, page_size=page_size)
    driven.attach()
    driven.only_stored((1, 2, 3, 4))
    name = driven.reading("q", 1, 2, 3, 4)
    driven.insert(1, 2)
    driven.back_up((1, 2))
    driven.read(name, 2, 2)

    steps: tuple[Operation, ...] = (EVERYTHING, Progress(rid="q"), EVERYTHING, Progress(rid="q"))

    assert 2 == sum(counted(driven(step), "prefetched") for step in steps)


@pytest.mark.parametrize("version", himamba_driven.ALL_RELEASES)
def test_a_cache_with_states_counts_likewise(version: str) -> None:
    """Goal: as above, of caches with states. Method: three pages are stored, flushed and fetched."""
    driven = himamba_driven.Driven(Sizes(device_pages=8, host_pages=24), version=version, storage="file")
    driven.attach()
    driven.insert(1, 2, 3)
    driven.back_up(1, 2, 3)
    driven(WriteDone(id="b:1.2.3", pages=2))
    driven(WriteDone(id="b:1.2.3", pages=1, states=1))
    assert 3 == counted(driven(EVERYTHING), "backed_up")

    driven.only_stored(4, 5, 6)
    driven.read(driven.reading("q", 4, 5, 6), 2, 1)
    driven(EVERYTHING)
    assert [3, 0] == [counted(driven(Progress(rid="q")), "prefetched") for _ in range(2)]


@pytest.mark.parametrize(("version", "attached"), [("0.5.1.post3", True), ("0.5.20", False)])
def test_where_nobody_counts_nothing_is_told(version: str, attached: bool) -> None:
    """Goal: no count is made up. Method: a release without a collector, and one without storage."""
    driven = Driven.of(version)
    if attached:
        driven.attach()

    assert Polled() == driven(EVERYTHING)
    assert Progressed(done=True) == driven(Progress(rid="q"))


def test_a_write_that_is_counted_twice_is_found(tmp_path: Path) -> None:
    """Goal: the oracle compares counters. Method: a collector that hears of each write twice."""
    file = tmp_path / "twice.py"
    file.write_text(TWICE)
    adapter, description = hiradix_driven.child(version="0.5.20", preload=str(file))
    sizes = Sizes(device_pages=4, host_pages=8)
    profile = Profile(rules=RULES["sglang-0.5.20"], sizes=sizes, name="here")
    lockstep = Lockstep(adapter, description, profile, "bytes", Checker(profile))
    *before, poll = IN_STORAGE
    for step in before:
        lockstep.step(step)
    with pytest.raises(Found) as found:
        lockstep.step(poll)

    assert "polled.backed_up is 4, expected 2" == found.value.finding.text


@pytest.mark.parametrize("version", himamba_driven.ALL_RELEASES)
def test_a_cache_with_states_cannot_attach_twice_where_metrics_have_names(version: str, tmp_path: Path) -> None:
    """Goal: a second attach makes a second collector (R6). Method: a collector that refuses it, as prometheus_client.

    The controller has its backend by then and the cache says that it has none, so that no later attach works either.
    """
    file = tmp_path / "names.py"
    file.write_text(ONE_NAME_ONE_METRIC)
    driven = himamba_driven.Driven(version=version, storage="file", preload=str(file))
    driven.attach()
    assert "done" == driven(Detach()).kind
    with pytest.raises(ImplementationRaised, match="Duplicated timeseries"):
        driven.attach()
    told = driven(Attach(settings=SETTINGS))
    assert isinstance(told, Refused)
    assert "already" in told.why


@pytest.mark.parametrize("version", hiradix_driven.ALL_RELEASES[3:])
def test_a_cache_without_states_keeps_its_collector(version: str, tmp_path: Path) -> None:
    """Goal: the fault above is that class's alone. Method: as above."""
    file = tmp_path / "names.py"
    file.write_text(ONE_NAME_ONE_METRIC)
    driven = Driven(Sizes(), version=version, preload=str(file))
    driven.attach()
    assert "done" == driven(Detach()).kind
    driven.attach()
