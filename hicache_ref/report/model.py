"""A divergence as data: what is broken, the smallest story, why it is wrong, who holds which page, how to see it."""

from collections.abc import Mapping, Sequence

from hicache_ref.oracle.explain import Story, Told
from hicache_ref.report.pagemap import PageMap, mark_words, page_maps
from hicache_ref.report.words import operation_words, outcome_in_full, outcome_words
from hicache_ref.requirements.catalogue import REQUIREMENTS, Requirement
from hicache_ref.search.finding import Finding, Source
from hicache_ref.vocabulary.adapter import Description
from hicache_ref.vocabulary.base import Frozen
from hicache_ref.vocabulary.ids import KV_DEVICE
from hicache_ref.vocabulary.profile import Profile

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

    let: tuple[str, ...]
    then: tuple[str, ...]
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
        adapter=f"{description.name} {description.version}",
        profile=profile_words(story.profile),
        level=description.level,
        completion=description.completion,
        found_after=found_after,
        steps=rows,
        let=_let(rows, drawn.maps),
        then=_then(finding, requirement, rows),
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


def _let(rows: Sequence[ReportStep], maps: Sequence[PageMap]) -> tuple[str, ...]:
    """What the contradiction speaks of: a page that the sides see differently, or else the last answer."""
    if not rows:
        return ("nothing has happened yet.",)
    last = rows[-1]
    for each in maps:
        for column in each.differing():
            adapter = each.adapter[column] if each.adapter else ""
            after = f"after step {last.index}, {last.operation}"
            return (
                f"P = {each.tier} page {each.pages[column]}, {after}:",
                f"for the oracle it is {mark_words(each.oracle[column])}, for the adapter {mark_words(adapter)}.",
            )
    return (f"step {last.index} be {last.operation}, to which the oracle says: {last.oracle}.",)


def _then(finding: Finding, requirement: Requirement | None, rows: Sequence[ReportStep]) -> tuple[str, ...]:
    """What must hold by the requirement, and what was found instead."""
    must = f"by {finding.requirement}: {requirement.text if requirement else UNKNOWN}"
    who = {"oracle": "The oracle itself breaks it", "crash": "Instead"}
    return (must, f"{who.get(finding.source, 'But')}: {finding.text}")
