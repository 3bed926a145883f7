"""The healthy model keeps its rules whatever rules are combined; a combination without meaning is refused."""

from collections.abc import Iterator
from itertools import combinations, product

import pytest
from pydantic import ValidationError

from hicache_ref.vocabulary.clashes import CLASHES, Clash
from hicache_ref.vocabulary.profile import RULES, Profile, Rules
from tests.healthy.combinations import CROSSED, Row, alarm, profiles, rows, values_of

PART = 7
"""Every seventh profile meets each policy with state and without, for six of them make a row."""


def alarms(walked: list[Profile]) -> list[str]:
    """What the healthy model was blamed for under these profiles."""
    blamed = [(profile, alarm(profile)) for profile in walked]
    return [f"{profile.name}: {small.finding} by {small.steps}" for profile, small in blamed if small is not None]


def test_the_healthy_model_is_not_blamed_under_some_combinations() -> None:
    """Goal: no two rules contradict each other. Method: a part of the covering set, 500 steps each."""
    assert [] == alarms(list(profiles())[::PART])


@pytest.mark.long
def test_the_healthy_model_is_not_blamed_under_any_combination() -> None:
    """Goal: as above. Method: the whole covering set, 500 steps each."""
    assert [] == alarms(list(profiles()))


def pairs_of(row: Row) -> Iterator[tuple[tuple[str, object], ...]]:
    """Any two rules with their values, in the order of their names."""
    return combinations([(name, row[name]) for name in sorted(row) if name in Rules.model_fields], 2)


def test_the_set_has_every_pair_of_values() -> None:
    """Goal: the set covers. Method: pairs of all values, but clashes, are counted here and looked for in the rows."""
    names = [name for name in sorted(Rules.model_fields) if name not in CROSSED]
    wanted = {
        ((one, mine), (other, its))
        for one, other in combinations(names, 2)
        for mine, its in product(values_of(one), values_of(other))
        if not any(clash.is_in({one: mine, other: its}) for clash in CLASHES)
    }

    assert wanted == {pair for row in rows() for pair in pairs_of(row)}


@pytest.mark.parametrize("clash", CLASHES, ids=lambda clash: f"{clash.rule}-{clash.other}")
def test_a_combination_without_meaning_is_refused(clash: Clash) -> None:
    """Goal: the user learns which two rules do not go together. Method: each clash, all else as in the reference."""
    with pytest.raises(ValidationError) as refused:
        Rules.model_validate({clash.rule: clash.value, clash.other: clash.forbidden})

    assert f"Value error, {clash}" in str(refused.value)
    assert clash.rule in str(clash)
    assert clash.other in str(clash)


def test_no_preset_clashes() -> None:
    """Goal: what a release does has a meaning. Method: every preset."""
    assert [] == [name for name, rules in RULES.items() if any(clash.is_in(vars(rules)) for clash in CLASHES)]
