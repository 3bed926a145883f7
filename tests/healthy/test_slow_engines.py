"""Released caches, slow in lawful ways: what is told of a poll is what the cache did, and nothing new is found."""

from importlib.resources import as_file, files
from pathlib import Path

import pytest

from hicache_ref.adapters.process import ProcessAdapter
from hicache_ref.oracle.campaign import Budget, Campaign
from hicache_ref.oracle.known import read_known
from hicache_ref.oracle.polls import NEVER_APPLIED
from hicache_ref.search.finding import Finding
from hicache_ref.vocabulary.adapter import Description
from hicache_ref.vocabulary.operations import CopyDone, Evict, LoadBack
from hicache_ref.vocabulary.outcomes import Polled
from hicache_ref.vocabulary.profile import Sizes, profile_named

pytest.importorskip("torch")

from tests.adapters import himamba_driven, hiradix_driven
from tests.adapters.hiradix_driven import EVERYTHING, Driven

pytestmark = pytest.mark.peers

SLOW = Path(__file__).parent / "slow"
KINDS = (
    "one_write_a_poll", "one_load_a_poll", "late_answers", "late_releases", "other_host_pages", "everything",
)  # fmt: skip
STEPS = 2_000
OF_STORAGE = {"late_answers", "late_releases"}


def preloaded(name: str) -> str:
    """The option that makes a cache slow in this way."""
    return str(SLOW / f"{name}.py")


def new_on(adapter: ProcessAdapter, description: Description, release: str, seed: int = 0) -> list[Finding]:
    """What walks find that is not known of this release."""
    with as_file(files("hicache_ref.adapters") / "known" / f"{release}.jsonl") as file:
        known = read_known(file)
    campaign = Campaign(adapter, profile_named(description.profile), seed=seed, known=known, keep_going=True)
    outlook = campaign.run(Budget(steps=STEPS))
    assert outlook.oracle_fault is None
    assert outlook.steps >= STEPS
    return [each.finding for each in outlook.divergences if each.known is None]


@pytest.mark.parametrize(
    ("kind", "storage"),
    [*((kind, "file") for kind in KINDS), *((kind, "off") for kind in KINDS if kind not in OF_STORAGE)],
)
def test_a_slow_hiradix_cache_conforms(kind: str, storage: str) -> None:
    """Goal: no false alarm. Method: walks over a cache that was made slow in the process that holds it."""
    adapter, description = hiradix_driven.child(version="0.5.20", storage=storage, preload=preloaded(kind))
    assert [] == new_on(adapter, description, "sglang-hiradix-0.5.20")


@pytest.mark.parametrize("kind", KINDS)
def test_a_slow_himamba_cache_conforms(kind: str) -> None:
    """Goal: as above, of caches with states. Method: as above."""
    adapter, description = himamba_driven.child(version="0.5.17", preload=preloaded(kind))
    assert [] == new_on(adapter, description, "sglang-himamba-0.5.17")


def test_one_write_is_told_where_one_was_acknowledged() -> None:
    """Goal: a poll tells what the cache did. Method: two copies to host have ended, the cache takes one of them a poll.

    It was told that both were applied, and blamed for a lock that was rightly there.
    """
    driven = Driven(Sizes(device_pages=8, host_pages=6), version="0.5.20", storage="off",
                    preload=preloaded("one_write_a_poll"))  # fmt: skip
    for number in (1, 2):
        driven.insert(number)
        driven(CopyDone(ticket=f"h:{driven.key(number)}"))

    told = [driven(EVERYTHING) for _ in range(3)]

    assert [Polled(backups=("h:10",)), Polled(backups=("h:20",)), Polled()] == told


def test_one_load_is_told_where_one_was_acknowledged() -> None:
    """Goal: as above. Method: as above, with two copies to device."""
    driven = Driven(Sizes(device_pages=8, host_pages=6), version="0.5.20", storage="off",
                    preload=preloaded("one_load_a_poll"))  # fmt: skip
    for number in (1, 2):
        driven.insert(number)
        driven.back_up((number,))
    driven(Evict(n=8))
    for number in (1, 2):
        driven(LoadBack(key=driven.key(number)))
        driven(CopyDone(ticket=f"d:{driven.key(number)}"))

    told = [driven(EVERYTHING) for _ in range(3)]

    assert [Polled(loads=("d:10",)), Polled(loads=("d:20",)), Polled()] == told


@pytest.mark.parametrize(
    ("call", "kind"),
    [("writing_check", "backups"), ("loading_check", "loads"), ("_drain_storage_control_queues_impl", "answers")],
)
def test_what_never_takes_note_is_found(tmp_path: Path, call: str, kind: str) -> None:
    """Goal: slow is not never. Method: a cache that has no look at ends of one kind."""
    file = tmp_path / "never.py"
    file.write_text(
        "from sglang.srt.mem_cache.hiradix_cache import HiRadixCache\n"
        f"HiRadixCache.{call} = lambda self, *args, **kwargs: None\n"
    )
    adapter, description = hiradix_driven.child(version="0.5.20", preload=str(file))

    found = new_on(adapter, description, "sglang-hiradix-0.5.20")

    assert any(each.requirement == NEVER_APPLIED and kind in each.text for each in found)


def test_a_revocation_that_never_was_is_not_told(tmp_path: Path) -> None:
    """Goal: who lost a prefetch is told from the cache. Method: a cache that takes the answer and revokes nothing."""
    file = tmp_path / "unrevoked.py"
    file.write_text(
        "from sglang.srt.mem_cache.hiradix_cache import HiRadixCache\n"
        "HiRadixCache._revoke_pending_prefetch = lambda self, rid: None\n"
    )
    driven = Driven(Sizes(device_pages=8, host_pages=6), version="0.5.20", preload=str(file))
    driven.attach()
    name = driven.prefetch("r", 1, 2)
    driven(hiradix_driven.QueryDone(id=name, hits=0))

    assert Polled(answers=(name,), prefetched=0, backed_up=0) == driven(EVERYTHING)
