"""The verdict: what may be concluded from a run, and what was not exercised and so is not concluded."""

from collections.abc import Collection, Sequence
from typing import Literal

from hicache_ref.oracle.campaign import Outlook
from hicache_ref.requirements import REQUIREMENTS, Requirement
from hicache_ref.vocabulary.adapter import Description
from hicache_ref.vocabulary.base import Frozen
from hicache_ref.vocabulary.observation import LEVELS, Level

Word = Literal["conforms", "divergence", "inconclusive", "oracle-fault"]

EXIT_CODES: dict[Word, int] = {"conforms": 0, "divergence": 1, "oracle-fault": 3, "inconclusive": 4}


ON_INVALID = "HC-CONF-04"
"""Judged on calls that break a precondition, which are made only where they are refused."""


class Exercised(Frozen):
    """How many requirements were judged on at least one subject."""

    exercised: int
    observable: int
    """Those that could have been, by this adapter under the rules that were walked."""

    total: int
    not_exercised: tuple[str, ...]
    """Observable, and without a subject in the whole run."""


class Reached(Frozen):
    """How many witnesses were met."""

    reached: int
    total: int
    """Those that could have been met."""

    missing: tuple[str, ...]


class DivergenceLine(Frozen):
    """One divergence, in short."""

    requirement: str
    operation: str
    trace: str | None = None
    """The file that holds its smallest trace; None for a known one, which keeps its own."""

    length: int
    """Steps of the smallest trace."""

    known: str | None = None
    """Which known divergence it is; None: a new one."""


class CheckReport(Frozen):
    """The result of a check; its JSON is a contract."""

    verdict: Word
    rules_only: bool
    adapter: str
    profile: str
    level: Level
    completion: str
    steps: int
    seconds: float
    seed: int | None = None
    requirements: Exercised
    witnesses: Reached
    divergences: tuple[DivergenceLine, ...]


def is_observable(requirement: Requirement, description: Description, outlook: Outlook) -> bool:
    """Whether the run could have judged it on the implementation itself, not on what its adapter adds."""
    if requirement.by == "test" or (requirement.id == ON_INVALID and description.invalid != "refuses"):
        return False
    if requirement.id in description.ours or requirement.id in description.unobservable:
        return False
    if LEVELS.index(requirement.level) > LEVELS.index(description.level):
        return False
    if requirement.area == "EVENT" and not description.events:
        return False
    return any(requirement.applies(rules, description.alphabet) for rules in outlook.rules)


def exercised(description: Description, outlook: Outlook, wanted: Collection[str] = ()) -> Exercised:
    """What was judged, of all requirements or of the `wanted`. What the oracle judges, it judges in each step."""
    rules = [
        each
        for each in REQUIREMENTS.values()
        if each.kind != "sometimes" and each.by != "storage" and (not wanted or each.id in wanted)
    ]
    observable = [each for each in rules if is_observable(each, description, outlook)]
    missing = [each.id for each in observable if not (outlook.steps if each.by == "oracle" else outlook.tally[each.id])]
    return Exercised(
        exercised=len(observable) - len(missing),
        observable=len(observable),
        total=len(rules),
        not_exercised=tuple(missing),
    )


def reached(description: Description, outlook: Outlook, wanted: Collection[str] = ()) -> Reached:
    """Which witnesses were met, of those that the rules walked and the adapter's operations can lead to."""
    reachable = [
        each.id
        for each in REQUIREMENTS.values()
        if each.kind == "sometimes" and (not wanted or each.id in wanted)
        and each.id not in description.unobservable
        and (each.able is None or getattr(description, each.able))
        and any(each.applies(rules, description.alphabet) for rules in outlook.rules)
    ]  # fmt: skip
    missing = tuple(name for name in reachable if not outlook.reached[name])
    return Reached(reached=len(reachable) - len(missing), total=len(reachable), missing=missing)


def check_report(
    description: Description,
    outlook: Outlook,
    divergences: Sequence[DivergenceLine],
    *,
    profile: str,
    level: Level,
    seed: int | None,
    wanted: Collection[str] = (),
) -> CheckReport:
    """The verdict on the run. Known divergences do not make it red; what was not exercised keeps it from green."""
    requirements = exercised(description, outlook, wanted)
    witnesses = reached(description, outlook, wanted)
    word: Word = "conforms"
    if outlook.oracle_fault is not None:
        word = "oracle-fault"
    elif any(each.known is None for each in divergences):
        word = "divergence"
    elif outlook.stopped or _left_open(requirements, witnesses):
        word = "inconclusive"
    return CheckReport(
        verdict=word,
        rules_only=level == "counts",
        adapter=description.name,
        profile=profile,
        level=level,
        completion=description.completion,
        steps=outlook.steps,
        seconds=round(outlook.seconds, 3),
        seed=seed,
        requirements=requirements,
        witnesses=witnesses,
        divergences=tuple(divergences),
    )


def _left_open(requirements: Exercised, witnesses: Reached) -> bool:
    """Whether something that could have been met was not, or nothing was."""
    met = requirements.exercised + witnesses.reached
    return bool(requirements.not_exercised or witnesses.missing or not met)
