"""The report of a divergence: its text is kept word for word, for it is read when somebody's build is red.

`HICACHE_REF_SNAPSHOTS=write` writes the texts in `reports/` anew; read the difference before it is committed.
"""

import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from hicache_ref.adapters.failures import ProcessDied, ProcessHung
from hicache_ref.adapters.reference import ReferenceAdapter
from hicache_ref.model import Model, fresh
from hicache_ref.model.evict import Rank
from hicache_ref.oracle.campaign import Outlook
from hicache_ref.oracle.explain import Story, retell
from hicache_ref.oracle.lockstep import Lockstep
from hicache_ref.oracle.verdict import check_report
from hicache_ref.report.files import stem
from hicache_ref.report.model import DivergenceReport, ReportStep, divergence_report, name_words
from hicache_ref.report.pagemap import COLUMNS_MAX
from hicache_ref.report.text import WIDTH, divergence_text, summary_text
from hicache_ref.requirements import Checker, Requirement
from hicache_ref.search.finding import Finding, Recorded, crash
from hicache_ref.vocabulary.ids import KV_DEVICE, STATE_DEVICE
from hicache_ref.vocabulary.keys import Key
from hicache_ref.vocabulary.observation import Level, Observation
from hicache_ref.vocabulary.operations import (
    CopyDone,
    Evict,
    Forward,
    ForwardDone,
    GiveBack,
    Insert,
    LoadBack,
    MatchPrefix,
    Operation,
    Poll,
    TakePages,
    WriteBackup,
)
from hicache_ref.vocabulary.outcomes import Evicted, Matched, Outcome
from hicache_ref.vocabulary.profile import Profile, Rules, Sizes

SNAPSHOTS = Path(__file__).with_name("reports")
REPLAY = "hicache-ref replay divergences/HC-X-0.jsonl --adapter planted"


class Leaks(Model):
    """A request that ends keeps its first page from everybody."""

    def on_give_back(self, op: GiveBack) -> Outcome:
        page = self.state.requests[op.rid].pages[0]
        outcome = super().on_give_back(op)
        self.state.pools[KV_DEVICE].free.remove(page)
        return outcome


class FreesTwice(Model):
    """The first page of an insert is the tree's, and free as well."""

    def on_insert(self, op: Insert) -> Outcome:
        page = self.state.requests[op.rid].pages[0]
        outcome = super().on_insert(op)
        self.state.pools[KV_DEVICE].free.append(page)
        return outcome


class FreesStateTwice(Model):
    """The first state of an insert is the tree's, and free as well."""

    def on_insert(self, op: Insert) -> Outcome:
        slot = self.state.requests[op.rid].state[0]
        outcome = super().on_insert(op)
        self.state.pools[STATE_DEVICE].free.append(slot)
        return outcome


class EvictsNewest(Model):
    """The policy is turned round."""

    def _rank(self, number: int) -> Rank:
        return tuple(-each for each in super()._rank(number))


class EvictsNothing(Model):
    """No leaf is good enough to go."""

    def on_evict(self, op: Evict) -> Outcome:
        return Evicted(freed=0)


class EvictsInnerNode(ReferenceAdapter):
    """With the first eviction the first node goes too, and what hung below it hangs at the root."""

    evicted = False

    def apply(self, operation: Operation) -> Outcome:
        self.evicted = isinstance(operation, Evict)
        return super().apply(operation)

    def observe(self, level: Level) -> Observation:
        seen = super().observe(level)
        if not self.evicted:
            return seen
        first, *rest = seen.segments
        below = tuple(each.model_copy(update={"parent": each.parent - 1}) for each in rest)
        return seen.model_copy(update={"segments": below, "free_device": (*seen.free_device, *(first.device or ()))})


class MatchesTooFar(Model):
    """A match names its best end as the end on host."""

    def on_match_prefix(self, op: MatchPrefix) -> Matched:
        outcome = super().on_match_prefix(op)
        return outcome.model_copy(update={"last_host_node": outcome.best})


class Crashes(Model):
    """A poll that applies loads raises."""

    def on_poll(self, op: Poll) -> Outcome:
        if op.loads:
            raise KeyError("no such load")
        return super().on_poll(op)


class SwappingAdapter(ReferenceAdapter):
    """The copies that it submits to device are in the wrong order."""

    def observe(self, level: Level) -> Observation:
        seen = super().observe(level)
        copies = tuple(
            copy.model_copy(update={"target": copy.target[::-1]}) if copy.to == "device" else copy
            for copy in seen.copies
        )
        return seen.model_copy(update={"copies": copies})


class CountingAdapter(ReferenceAdapter):
    """It shows nothing but sizes."""

    def describe(self) -> Any:
        return super().describe().model_copy(update={"level": "counts", "completion": "quiescent"})


def request(rid: str, *tokens: int, extra: str | None = None, start: int = 0, page: int = 1) -> list[Operation]:
    """A prompt from its pages to its insert."""
    key = Key(tokens=tokens, extra=extra)
    return [
        TakePages(rid=rid, n=len(tokens) // page - start), Forward(rid=rid, key=key, start=start),
        ForwardDone(rid=rid), Insert(rid=rid, key=key, start=start),
    ]  # fmt: skip


def backed_up(*tokens: int) -> list[Operation]:
    """The prompt's node has a host copy."""
    ticket = "h:" + ".".join(map(str, tokens))
    return [*request("r0", *tokens), WriteBackup(key=Key(tokens=tokens)), CopyDone(ticket=ticket), Poll(backups=1)]


SELECTIVE = Rules(write_policy="write_through_selective", write_through_threshold=2)

CASES: dict[str, tuple[ReferenceAdapter, Profile, Sequence[Operation]]] = {
    "leak": (ReferenceAdapter(Leaks, "planted"), Profile(), [TakePages(rid="r0", n=2), GiveBack(rid="r0")]),
    "two-holders": (ReferenceAdapter(FreesTwice, "planted"), Profile(rules=SELECTIVE), request("r0", 1, 2, 3)),
    "wrong-victim": (
        ReferenceAdapter(EvictsNewest, "planted"),
        Profile(rules=SELECTIVE),
        [*request("r0", 1, 2), *request("r1", 3, 4, extra="a"), Evict(n=1)],
    ),
    "no-victim": (
        ReferenceAdapter(EvictsNothing, "planted"),
        Profile(rules=SELECTIVE),
        [*request("r0", 1, 2), Evict(n=1)],
    ),
    "inner-victim": (
        EvictsInnerNode(name="planted"),
        Profile(rules=Rules(write_policy="write_through_selective", write_through_threshold=9)),
        [*request("r0", 1, 2), *request("r1", 1, 2, 3, start=2), *request("r2", 1, 2, 5, 6, start=2), Evict(n=1)],
    ),
    "wrong-answer": (
        ReferenceAdapter(MatchesTooFar, "planted"),
        Profile(rules=SELECTIVE),
        [*request("r0", 1, 2, 3, 4), MatchPrefix(key=Key(tokens=(1, 2)))],
    ),
    "crash": (
        ReferenceAdapter(Crashes, "planted"),
        Profile(rules=SELECTIVE),
        [*backed_up(1, 2), Evict(n=2), LoadBack(key=Key(tokens=(1, 2))), CopyDone(ticket="d:1.2"), Poll(loads=1)],
    ),
    "swapped-load": (
        SwappingAdapter(name="planted"),
        Profile(rules=SELECTIVE),
        [*backed_up(1, 2), Evict(n=2), LoadBack(key=Key(tokens=(1, 2))), CopyDone(ticket="d:1.2")],
    ),
    "counts-only": (
        CountingAdapter(Leaks, "planted"),
        Profile(),
        [TakePages(rid="a request with a long name", n=2), GiveBack(rid="a request with a long name")],
    ),
    "large-pool": (
        ReferenceAdapter(FreesTwice, "planted"),
        Profile(rules=SELECTIVE, sizes=Sizes(device_pages=200, host_pages=50, page_size=2), bigram=True),
        request("r0", *range(81), page=2),
    ),
}


def _rule(name: str, *implies: str) -> Requirement:
    text = f"This is what {name} says, in so many words that a title has to go on in a second line before it ends."
    return Requirement(id=name, kind="always", text=text, why="For the test.", since="0.5.1", implies=implies)


CATALOGUE = {
    rule.id: rule
    for rule in (
        _rule("HC-PAGE-01"), _rule("HC-PAGE-02"), _rule("HC-PAGE-05", "HC-PAGE-01", "HC-PAGE-02"), _rule("HC-PAGE-06"),
        _rule("HC-PAGE-09"), _rule("HC-EVICT-01"), _rule("HC-EVICT-02"), _rule("HC-EVICT-03"),
        _rule("HC-CONF-01"), _rule("HC-CONF-02"),
    )
}  # fmt: skip


@pytest.fixture(autouse=True)
def _texts_that_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    """The reports are kept, whatever becomes of the texts of the requirements."""
    monkeypatch.setattr("hicache_ref.report.model.REQUIREMENTS", CATALOGUE)


def told(adapter: ReferenceAdapter, profile: Profile, steps: Sequence[Operation]) -> DivergenceReport:
    """The report of what is found in the last of the steps."""
    description = adapter.describe()
    story = retell(
        Lockstep(adapter, description, profile, description.level, Checker(profile)), [Recorded(op) for op in steps]
    )
    assert story.finding is not None
    assert len(story.steps) == len(steps)
    return divergence_report(story.finding, story, description, found_after=41, replay=REPLAY)


@pytest.mark.parametrize("name", CASES)
def test_the_text_is_as_it_was(name: str) -> None:
    """Goal: no report changes unread. Method: a planted fault each, its report compared with a file."""
    text = re.sub(r"\(\S+\.py:\d+\)", "(FILE:LINE)", divergence_text(told(*CASES[name])))
    file = SNAPSHOTS / f"{name}.txt"
    if os.environ.get("HICACHE_REF_SNAPSHOTS") == "write":
        file.write_text(text)

    assert file.read_text() == text


@pytest.mark.parametrize("name", CASES)
def test_the_text_fits_and_ends_in_the_command(name: str) -> None:
    """Goal: readable in a terminal and a log, replayed by its last line. Method: every case, line by line."""
    lines = divergence_text(told(*CASES[name])).splitlines()

    assert [] == [line for line in lines if len(line) > WIDTH or line != line.rstrip()]
    assert REPLAY == lines[-1]


@pytest.mark.parametrize("name", CASES)
def test_a_report_is_data(name: str) -> None:
    """Goal: what is shown can be read by programs. Method: through JSON and back."""
    report = told(*CASES[name])

    assert report == DivergenceReport.model_validate_json(report.model_dump_json())


def test_differing_pages_are_shown_first() -> None:
    """Goal: a large pool fits, and never hides what differs. Method: 200 pages of which one has two holders."""
    device = told(*CASES["large-pool"]).maps[0]

    assert COLUMNS_MAX == len(device.pages)
    assert 200 - COLUMNS_MAX == device.left_out
    assert ["n1/."] == [device.adapter[i] for i in device.differing() if device.adapter]


def test_what_falls_with_it_is_named() -> None:
    """Goal: one broken rule is told, with those that it breaks. Method: a finding that names one, in our own model."""
    finding = Finding("HC-PAGE-01", "device page 0 is held twice", "insert", "oracle", falls=("HC-PAGE-09",))
    story = Story(Profile(), (), None, fresh(Profile()))
    report = divergence_report(finding, story, ReferenceAdapter().describe(), found_after=7, replay=REPLAY)
    text = divergence_text(report)

    assert ["HC-PAGE-09", "HC-PAGE-05"] == [each.id for each in report.falls]
    assert text.startswith("ORACLE FAULT  HC-PAGE-01")
    assert "Falls with it" in text
    assert "the trace did not end in this" in text


def test_the_host_pool_is_drawn_too() -> None:
    """Goal: both tiers, device first. Method: a case with a host copy."""
    maps = told(*CASES["swapped-load"]).maps

    assert ["kv.device", "kv.host"] == [each.pool for each in maps]
    assert {"n1", "."} == set(maps[1].oracle)
    assert maps[1].oracle == maps[1].adapter


def test_state_slots_have_a_map_of_their_own() -> None:
    """Goal: who holds a state shows. Method: an insert that frees the state slot that the tree has."""
    profile = Profile(name="reference/tiny", state=True, rules=SELECTIVE)
    report = told(ReferenceAdapter(FreesStateTwice, "planted"), profile, request("r0", 1, 2))
    states = {each.pool: each for each in report.maps}["state.device"]

    assert ["kv.device", "kv.host", "state.device", "state.host"] == [each.pool for each in report.maps]
    assert ["n1/."] == [states.adapter[at] for at in states.differing() if states.adapter]
    assert "device state" in divergence_text(report)


def test_one_reason_is_one_line() -> None:
    """Goal: what an engine lacks does not fill the screen. Method: four requirements left out for two reasons."""
    description = ReferenceAdapter().describe().model_copy(
        update={"unobservable": {"HC-DRAFT-01": "no draft pool", "HC-EVENT-01": "no events",
                                 "HC-DRAFT-02": "no draft pool"},
                "ours": frozenset({"HC-PAGE-01"})}
    )  # fmt: skip
    report = check_report(
        description, Outlook(), [], profile="reference", level="tree", seed=0, wanted=frozenset()
    )  # fmt: skip
    text = summary_text(report, description, walks=0, stopped=False, remarks=(), verdict="inconclusive")

    assert [
        "not judged here  HC-DRAFT-01, HC-DRAFT-02: no draft pool",
        "not judged here  HC-EVENT-01: no events",
        "not judged here  HC-PAGE-01: kept by the adapter, not by the engine",
    ] == [line for line in text.splitlines() if line.startswith("not judged here")]
    assert [] == [line for line in text.splitlines() if len(line) > WIDTH]


def test_only_names_that_occur_are_explained() -> None:
    """Goal: no reader guesses what `h:` is, nor reads of what is not there. Method: rows with names, and without."""

    def row(adapter: str) -> ReportStep:
        return ReportStep(index=0, operation="evict 1", adapter=adapter, oracle="freed 1")

    waits = "refused: device full, waits for f:r1 d:0.1"

    assert ("f:R forward pass of request R", "d:KEY copy of KEY to device") == name_words([row(waits)])
    assert ("? a page that only the oracle has",) == name_words([row("took {1 ?}")])
    assert () == name_words([row("matched {1}, device end d:[1 2]")])


def test_crashes_of_one_trace_have_files_of_their_own() -> None:
    """Goal: no report overwrites another. Method: four ways to crash in the same step, each told twice."""
    steps = (Recorded(Evict(n=1)),)
    errors = (KeyError("a"), IndexError("a"), ProcessDied("code 1"), ProcessHung("30 s"))
    crashes = [crash(error, steps[0].op, "HC-CONF-01") for error in errors * 2]

    names = [stem(each, Profile(), steps) for each in crashes]

    assert 4 == len(set(names))
    assert names[:4] == names[4:]
