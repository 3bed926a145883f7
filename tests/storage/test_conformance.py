"""The conformance kit: honest stores pass, and each store that is wrong in one way is found out by the right rule."""

from functools import partial
from pathlib import Path

import pytest

from hicache_ref.storage.base import Misuse, StorageError
from hicache_ref.storage.conformance import CONFIG, RULES, Report, Subject, Terms, check, subject_of
from hicache_ref.storage.faulty import Faults, FaultyBackend
from hicache_ref.storage.memory import MemoryBackend
from hicache_ref.storage.registry import open_object
from tests.storage.broken import BROKEN, FindsItsOwnAlone, Hangs, NeverStores, PutsRaise
from tests.storage.servers import mooncake_master, redis_server

CLEAR = Terms(CONFIG, clear=True)
PROCESSES = {"HC-STORE-33", "HC-STORE-34"}
UNMEASURED = {"HC-STORE-41": "the store measures nothing"}


def broken_rules(report: Report) -> set[str]:
    """The rules that the store does not keep."""
    return {each.result.breaks for each in report.findings}


def told(report: Report) -> dict[str, str]:
    """What broke, and what was not judged, for messages of failed tests."""
    return {each.rule: each.broken or each.not_judged or "" for each in report.results if not each.judged}


def subject(kind: type[MemoryBackend], name: str) -> Subject:
    """A store in memory, under a name of its own."""
    return Subject(f"memory://{name}", lambda _: kind(name), lambda _: kind(name), shared=False)


def test_memory_conforms() -> None:
    """Goal: an honest store passes. Method: the whole kit; only what needs other processes is not judged."""
    report = check(subject_of("memory://conforms"), CLEAR)

    assert dict.fromkeys(PROCESSES, "no other process sees the pages of this store") | UNMEASURED == told(report)
    assert set(RULES) == {each.rule for each in report.results}


def test_files_conform(tmp_path: Path) -> None:
    """Goal: the default store keeps every rule, also between processes. Method: the whole kit."""
    report = check(subject_of(f"files://{tmp_path}"), CLEAR)

    assert UNMEASURED == told(report)
    assert [".writers"] == [path.name for path in tmp_path.iterdir()]


def test_redis_conforms(tmp_path: Path) -> None:
    """Goal: a server that several machines share keeps every rule. Method: the whole kit on a server of our own."""
    with redis_server(tmp_path) as url:
        assert UNMEASURED == told(check(subject_of(url), CLEAR))


def test_mooncake_conforms(tmp_path: Path) -> None:
    """Goal: the store that operators name most keeps every rule. Method: the whole kit on a master of our own."""
    with mooncake_master(tmp_path) as url:
        assert UNMEASURED == told(check(subject_of(url), CLEAR))


@pytest.mark.parametrize("kind", BROKEN, ids=lambda kind: kind.__name__)
def test_a_planted_fault_is_found(kind: type[MemoryBackend]) -> None:
    """Goal: the kit can fail, rule by rule. Method: stores that are wrong in one way each."""
    report = check(subject(kind, kind.__name__), CLEAR)

    assert BROKEN[kind] in broken_rules(report)
    results = [each.result for each in report.findings]
    assert all(each.story and each.operation and each.through for each in results)
    assert len({each.fault for each in results}) == len(results)


@pytest.mark.parametrize("store", ["InPlace", "LocksForGood"])
def test_a_writer_that_is_killed_is_found_out(tmp_path: Path, store: str) -> None:
    """Goal: torn and blocked keys are noticed. Method: files written in place, and reservations that stay."""
    target = f"tests.storage.offered:{store}"
    config = CONFIG.model_copy(update={"extra": {"folder": str(tmp_path)}})
    report = check(subject_of(target), Terms(config, patience=0.5), {"HC-STORE-34"})

    assert {"HC-STORE-34"} == broken_rules(report)


@pytest.mark.parametrize(
    ("store", "rules"),
    [
        ("NamesByConfiguration", set()),
        ("CountsWhatItRead", {"HC-STORE-28"}),
        ("AnswersNothing", {"HC-STORE-28"}),
        ("IgnoresTheDataType", {"HC-STORE-37"}),
        ("KeepsReplicasApart", {"HC-STORE-38"}),
        ("KeepsAttentionReplicasApart", {"HC-STORE-38"}),
        ("AnswersEachKey", set()),
        ("ConfigurationIsOptional", set()),
    ],
)
def test_objects_with_the_methods_of_sglang(store: str, rules: set[str]) -> None:
    """Goal: a store that was written for SGLang is checked as it is. Method: some that are right, and variants."""
    report = check(subject_of(f"tests.storage.offered:{store}"), CLEAR)

    assert rules == broken_rules(report)
    assert {"HC-STORE-33", "HC-STORE-34", "HC-STORE-39", "HC-STORE-40", "HC-STORE-41"} == {
        each.rule for each in report.results if each.not_judged
    }


@pytest.mark.parametrize(
    ("store", "broken"),
    [
        ("Measures", None),
        ("MeasuresNothing", None),
        ("MeasuresOtherCalls", None),
        ("TellsAgain", "batches that were told are told again"),
        ("TellsFromTheStart", "batches are told before one was moved"),
        ("MeasuresObjects", "batches stored are told as 10 pages, expected 5"),
        ("LosesASpeed", "1 batches stored are told with 0 speeds, expected one for each"),
        ("TellsADictionary", "get_stats answers {'prefetch_pgs': []}, expected lists prefetch_pgs"),
        ("TellsNoSpeed", "get_stats answers StorageMetrics(prefetch_pgs=[6]"),
    ],
)
def test_what_is_measured(store: str, broken: str | None) -> None:
    """Goal: HC-STORE-41 can fail, and asks nobody to measure. Method: lawful stores, and some wrong in one way each."""
    report = check(subject_of(f"tests.storage.offered:{store}"), CLEAR)

    told = {each.result.breaks: each.result.broken for each in report.findings}
    assert ({"HC-STORE-41"} if broken else set()) == set(told)
    assert (told.get("HC-STORE-41") or "").startswith(broken or "")
    judged = {each.rule: each.judged for each in report.results}
    assert (2 if store == "Measures" else 0) == judged["HC-STORE-41"]


def test_a_store_whose_names_say_whether_it_measures() -> None:
    """Goal: HC-STORE-42 can fail. Method: a store that makes its names of all that it is told."""
    report = check(subject_of("tests.storage.offered:NamesByAllItIsTold"), CLEAR)

    assert {"HC-STORE-42"} == broken_rules(report)


@pytest.mark.parametrize(
    ("store", "operation", "told"),
    [
        ("PutAnswersTwice", "write", "batch_set of 1 keys gives 2 answers, expected one for each key"),
        ("PutAnswersWithANumber", "write", "batch_set answers 0, expected true or false"),
        ("PutAnswersNothing", "write", "batch_set answers None, expected true or false"),
        ("ReadAnswersTwice", "read", "batch_get of 1 keys gives 2 answers, expected one for each key"),
        ("CountsTooFar", "exists", "batch_exists of 5 keys answers 10, expected a number of pages up to that"),
    ],
)
def test_an_answer_that_is_none_is_found(store: str, operation: str, told: str) -> None:
    """Goal: HC-STORE-22 for stores written for SGLang. Method: answers that are no truth value, or not one a key."""
    (finding,) = check(subject_of(f"tests.storage.offered:{store}"), CLEAR).findings

    assert ("HC-STORE-22", told) == (finding.result.breaks, finding.result.broken)
    assert operation == finding.result.operation


def test_a_fault_is_told_once() -> None:
    """Goal: one fault is one finding, told by the rule about it. Method: puts that all fail, by answer and by error."""
    refused = check(subject(NeverStores, "told once"), CLEAR).findings
    raised = check(subject(PutsRaise, "raised once"), CLEAR).findings

    first = next(each for each in refused if each.result.breaks == "HC-STORE-23")
    assert ("HC-STORE-23", "write", "handle 1") == (first.result.rule, first.result.operation, first.result.through)
    assert {"HC-STORE-20", "HC-STORE-24", "HC-STORE-25"} <= set(first.also)
    assert ["HC-STORE-23", "HC-STORE-31", "HC-STORE-32"] == sorted(each.result.breaks for each in refused)
    assert ["raises StorageError: disk 1 is full"] == [each.result.broken for each in raised]
    assert len(RULES.keys() - UNMEASURED) - 1 == len(raised[0].also)


def test_a_break_says_through_which_handle() -> None:
    """Goal: who reads the report knows which client to look at. Method: one that finds nothing but its own pages."""
    report = check(subject(FindsItsOwnAlone, "of its own"), CLEAR, {"HC-STORE-23", "HC-STORE-36"})

    assert {"HC-STORE-23": "handle 2", "HC-STORE-36": "handle 2"} == {
        each.rule: each.through for each in report.results
    }
    assert any(line.startswith("handle 1: write(8 keys") for line in report.results[0].story)
    assert "handle 2: exists(8 keys) -> 0" == report.results[0].story[-1]


def test_a_store_that_hangs_ends_the_check() -> None:
    """Goal: no check waits for ever. Method: a read that never returns, and a second for signs of life."""
    report = check(subject(Hangs, "hangs"), Terms(CONFIG, timeout=0.5))

    assert "no answer within 0.5 s" == report.results[-1].broken
    assert "read" == report.results[-1].operation
    assert len(report.results) < len(RULES)


@pytest.mark.parametrize("fault", ["miss", "short", "error", "vanish", "refuse", "wrong_length", "evict"])
def test_a_store_that_misbehaves_does_not_pass(fault: str) -> None:
    """Goal: what a consumer has to stand is no conforming store. Method: each planted kind alone, always striking."""
    made = partial(FaultyBackend, MemoryBackend("misbehaves"), Faults(**{fault: 1}))
    report = check(Subject("memory://misbehaves", lambda _: made(), lambda _: made(), shared=False))

    assert broken_rules(report)


def test_the_store_is_emptied_only_if_that_is_allowed() -> None:
    """Goal: a check beside other users costs them nothing. Method: a page of somebody else's, before and after."""
    other = MemoryBackend("in use")
    other.write(["theirs"], [memoryview(b"page")])
    report = check(subject_of("memory://in%20use"))

    assert 1 == other.exists(["theirs"])
    assert {"HC-STORE-35"} == {each.rule for each in report.results if each.not_judged} - PROCESSES - UNMEASURED.keys()
    check(subject_of("memory://in%20use"), CLEAR)
    assert 0 == other.exists(["theirs"])


def test_a_store_that_cannot_be_opened_is_no_finding(tmp_path: Path) -> None:
    """Goal: a mistake of the user is told as one. Method: a file for a folder, a class that is not there."""
    (tmp_path / "file").touch()

    with pytest.raises(StorageError, match="File exists, expected a folder"):
        check(subject_of(f"files://{tmp_path}/file"))
    with pytest.raises(Misuse, match=r"tests\.storage\.offered:Absent: AttributeError"):
        open_object("tests.storage.offered:Absent", CONFIG)
