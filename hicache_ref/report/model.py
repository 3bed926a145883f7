"""A divergence as data: what is broken, the smallest story, why it is wrong, who holds which page, how to see it."""

import re
from collections.abc import Iterator, Mapping, Sequence

from hicache_ref.oracle.explain import Story, Told
from hicache_ref.oracle.seen import CALLED
from hicache_ref.report.pagemap import PageMap, mark_words, page_maps
from hicache_ref.report.words import operation_words, outcome_in_full, outcome_words
from hicache_ref.requirements.catalogue import REQUIREMENTS, Requirement
from hicache_ref.search.finding import Finding, Source
from hicache_ref.vocabulary.adapter import Description
from hicache_ref.vocabulary.base import Frozen
from hicache_ref.vocabulary.ids import KV_DEVICE
from hicache_ref.vocabulary.profile import Profile

_NAMES = {
    r"\bf:\w": "f:R forward pass of request R",
    r"\bh:[\w/~]": "h:KEY copy of KEY to host",
    r"\bd:[\w/~]": "d:KEY copy of KEY to device",
    r"\bc:[\w/~]": "c:KEY copy of the state at KEY for a request",
    r"\bp:[\w/~]": "p:KEY prefetch of KEY",
    r"\bb:[\w/~]": "b:KEY backup of KEY to storage",
    r"[{ ]\?[ }]": "? a page that only the oracle has",
}
"""Pattern of a name in the steps -> what it stands for."""

NO_ANSWER = "no answer"
UNKNOWN = "a requirement that the catalogue does not name"


class ReportStep(Frozen):
    """A row of the step table."""

    index: int
    operation: str
    adapter: str
    oracle: str


class Fallen(Frozen):
    """A requirement that is broken because another one is."""

    id: str
    text: str


class DivergenceReport(Frozen):
    """Everything that the report of one divergence says."""

    requirement: str
    text: str
    kind: str
    since: str | None = None
    source: Source
    adapter: str
    profile: str
    level: str
    completion: str
    found_after: int
    """Steps of the run in which it was found."""

    steps: tuple[ReportStep, ...]
    """The first difference is in the last one."""

    story: tuple[str, ...]
    """What both sides did in that step, what must hold, and what was found."""

    names: tuple[str, ...]
    """What the short names in the steps stand for."""

    maps: tuple[PageMap, ...]
    map_step: int
    """The step after which the maps were drawn; -1: before the first."""

    legend: tuple[str, ...]
    falls: tuple[Fallen, ...]
    reproduced: bool
    """Whether the same was found when the trace was executed for this report."""

    replay: str
    """The command that executes the trace again."""


def divergence_report(finding: Finding, story: Story, description: Description, *, found_after: int,
                      replay: str) -> DivergenceReport:  # fmt: skip
    """The report of `finding`, whose smallest trace `story` tells."""
    requirement = REQUIREMENTS.get(finding.requirement)
    rows = tuple(_row(index, told) for index, told in enumerate(story.steps))
    pairs = story.steps[-1].pairs if story.steps else {}
    drawn = page_maps(story.profile, story.state, story.observation, pairs)
    seen = [index for index, told in enumerate(story.steps) if told.observation is not None]
    return DivergenceReport(
        requirement=finding.requirement,
        text=requirement.text if requirement else UNKNOWN,
        kind=requirement.kind if requirement else "unknown",
        since=requirement.since if requirement else None,
        source=finding.source,
        adapter=f"{description.name} {description.release}",
        profile=profile_words(story.profile),
        level=description.level,
        completion=description.completion,
        found_after=found_after,
        steps=rows,
        story=_story(finding, requirement, rows, drawn.maps),
        names=name_words(rows),
        maps=drawn.maps,
        map_step=seen[-1] if seen else -1,
        legend=drawn.legend,
        falls=falls_with(finding, REQUIREMENTS),
        reproduced=finding.same_as(story.finding),
        replay=replay,
    )


def profile_words(profile: Profile) -> str:
    """Name, sizes, and the rules that a search draws."""
    rules, sizes = profile.rules, profile.sizes
    words = [
        profile.name,
        f"page={sizes.page_size} device={sizes.device_pages} host={sizes.host_pages}",
        rules.write_policy if rules.write_through_threshold is None
        else f"{rules.write_policy}:{rules.write_through_threshold}",
        rules.eviction,
    ]  # fmt: skip
    return " ".join(words + ["bigram"] * profile.bigram)


def falls_with(finding: Finding, requirements: Mapping[str, Requirement]) -> tuple[Fallen, ...]:
    """What is broken beside the requirement of `finding`: what was seen to be, and what implies it."""
    fallen = dict.fromkeys(finding.falls)
    before = -1
    while len(fallen) > before:
        before = len(fallen)
        broken = {finding.requirement, *fallen}
        fallen |= dict.fromkeys(name for name, each in requirements.items() if broken & set(each.implies))
    fallen.pop(finding.requirement, None)
    return tuple(Fallen(id=name, text=requirements[name].text) for name in fallen if name in requirements)


def _row(index: int, told: Told) -> ReportStep:
    """Both answers in the page names of the implementation; in full where few words do not tell them apart."""

    def renamed(page: int) -> int:
        return told.pairs.get(KV_DEVICE, {}).get(page, -1)

    ours = told.ours.outcome if told.ours is not None else None
    oracle = outcome_words(ours, renamed) if ours else NO_ANSWER
    adapter = outcome_words(told.theirs) if told.theirs else NO_ANSWER
    if ours and told.theirs and oracle == adapter:
        oracle, adapter = _told_apart(outcome_in_full(ours, renamed), outcome_in_full(told.theirs), oracle, adapter)
    return ReportStep(index=index, operation=operation_words(told.op), adapter=adapter, oracle=oracle)


def _told_apart(full_oracle: str, full_adapter: str, oracle: str, adapter: str) -> tuple[str, str]:
    return (oracle, adapter) if full_oracle == full_adapter else (full_oracle, full_adapter)


def _story(finding: Finding, requirement: Requirement | None, rows: Sequence[ReportStep],
           maps: Sequence[PageMap]) -> tuple[str, ...]:  # fmt: skip
    """The step and its answers, a page that the sides see differently, the requirement, and what was found."""
    said = ["Nothing has happened yet."]
    if rows:
        said = [f"At step {rows[-1].index}, {rows[-1].operation}, {_answers(rows[-1])}", *_page_words(maps)]
    said.append(f"{finding.requirement} requires: {requirement.text if requirement else UNKNOWN}")
    who = "The oracle itself breaks this. " if finding.source == "oracle" else ""
    return (*said, f"{who}Found: {finding.text}")


def _answers(last: ReportStep) -> str:
    if last.adapter == NO_ANSWER:
        return f"the adapter does not answer; the oracle answers: {last.oracle}."
    if last.oracle == last.adapter:
        return f"both sides answer: {last.oracle}."
    return f"the adapter answers: {last.adapter}; the oracle answers: {last.oracle}."


def _page_words(maps: Sequence[PageMap]) -> Iterator[str]:
    """The first page on which the sides differ, in words."""
    for each in maps:
        for column in each.differing():
            adapter = each.adapter[column] if each.adapter else ""
            oracle = mark_words(each.oracle[column])
            what = f"{CALLED[each.pool]} {each.pages[column]}"
            yield f"After it {what} is {oracle} for the oracle, {mark_words(adapter)} for the adapter."
            return


def name_words(rows: Sequence[ReportStep]) -> tuple[str, ...]:
    """What each kind of name in the steps stands for; only those that occur."""
    text = " ".join(f"{row.operation} {row.adapter} {row.oracle}" for row in rows)
    return tuple(words for pattern, words in _NAMES.items() if re.search(pattern, text))
