"""The verdict: what may be concluded from a run, and what was not exercised and so is not concluded."""

from collections.abc import Collection, Iterable, Sequence
from math import inf
from typing import Literal

from hicache_ref.oracle.campaign import Outlook
from hicache_ref.requirements import REQUIREMENTS, Requirement
from hicache_ref.search.finding import Differs
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
    promised: int
    """Of the observable ones those that a healthy implementation is sure to meet in so many steps."""

    not_exercised: tuple[str, ...]
    """Observable, and without a subject in the whole run."""

    owed: tuple[str, ...]
    """Those of the last that were promised."""


class Reached(Frozen):
    """How many witnesses were met."""

    reached: int
    total: int
    """Those that could have been met."""

    promised: int
    missing: tuple[str, ...]
    owed: tuple[str, ...]
    """Those of the missing that were promised."""


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

    differs: Differs | None = None
    """What differs, as an entry of known divergences pins it."""


class KnownLine(Frozen):
    """One known divergence whose own trace was executed again."""

    id: str
    still_fails: bool
    alarm: bool
    """Whether it is gone from a release that is pinned by hash, where nothing can have repaired it."""


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
    known: tuple[KnownLine, ...] = ()
    """What was known before; empty where nothing was, or a run was blind."""


def is_observable(requirement: Requirement, description: Description, outlook: Outlook) -> bool:
    """Whether the run could have judged it on the implementation itself, not on what its adapter adds."""
    if requirement.id == ON_INVALID and description.invalid != "refuses":
        return False
    if requirement.id in description.ours or requirement.id in description.unobservable:
        return False
    if LEVELS.index(requirement.level) > LEVELS.index(description.level):
        return False
    if requirement.area == "EVENT" and not description.events:
        return False
    return any(map(requirement.applies, outlook.reaches))


def exercised(description: Description, outlook: Outlook, wanted: Collection[str], promise: float) -> Exercised:
    """What was judged, of all requirements or of the `wanted`. What the oracle judges, it judges in each step."""
    rules = [
        each
        for each in REQUIREMENTS.values()
        if each.kind != "sometimes" and each.by != "storage" and (not wanted or each.id in wanted)
    ]
    observable = [each for each in rules if is_observable(each, description, outlook)]
    unmet = [each for each in observable if not (outlook.steps if each.by == "oracle" else outlook.tally[each.id])]
    return Exercised(
        exercised=len(observable) - len(unmet),
        observable=len(observable),
        total=len(rules),
        promised=len(_within(observable, promise)),
        not_exercised=_ids(unmet),
        owed=_ids(_within(unmet, promise)),
    )


def reached(description: Description, outlook: Outlook, wanted: Collection[str], promise: float) -> Reached:
    """Which witnesses were met, of those that the rules walked and the adapter can lead to."""
    reachable = [
        each
        for each in REQUIREMENTS.values()
        if each.kind == "sometimes" and (not wanted or each.id in wanted)
        and each.id not in description.unobservable and each.id not in outlook.barred
        and any(map(each.applies, outlook.reaches))
    ]  # fmt: skip
    missing = [each for each in reachable if not outlook.reached[each.id]]
    return Reached(
        reached=len(reachable) - len(missing),
        total=len(reachable),
        promised=len(_within(reachable, promise)),
        missing=_ids(missing),
        owed=_ids(_within(missing, promise)),
    )


def _within(some: Iterable[Requirement], steps: float) -> list[Requirement]:
    """Those that a healthy implementation is sure to meet in so many steps."""
    return [each for each in some if each.within <= steps]


def _ids(some: Iterable[Requirement]) -> tuple[str, ...]:
    return tuple(each.id for each in some)


def check_report(
    description: Description,
    outlook: Outlook,
    divergences: Sequence[DivergenceLine],
    *,
    profile: str,
    level: Level,
    seed: int | None,
    wanted: Collection[str] = (),
    strict: bool = False,
) -> CheckReport:
    """The verdict on the run. Known divergences do not make it red; what was promised and not met keeps it from green.

    It is red too where a known divergence is gone that cannot be: the adapter or the oracle sees less than it did.
    `strict` promises all that can be met, however short the run.
    """
    known = tuple(
        KnownLine(id=name, still_fails=fails, alarm=description.pinned and not fails)
        for name, fails in outlook.replayed.items()
    )
    promise = inf if strict else outlook.steps
    requirements = exercised(description, outlook, wanted, promise)
    witnesses = reached(description, outlook, wanted, promise)
    word: Word = "conforms"
    if outlook.oracle_fault is not None:
        word = "oracle-fault"
    elif any(each.known is None for each in divergences) or any(each.alarm for each in known):
        word = "divergence"
    elif outlook.stopped or outlook.cut_off or _left_open(requirements, witnesses):
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
        known=known,
    )


def _left_open(requirements: Exercised, witnesses: Reached) -> bool:
    """Whether something promised was not met; a run too short to promise anything has to meet all that it could."""
    if requirements.promised + witnesses.promised:
        return bool(requirements.owed or witnesses.owed)
    return not requirements.exercised + witnesses.reached or bool(requirements.not_exercised or witnesses.missing)
