"""An object in this process as an adapter: operations are calls of its methods."""

import re

import pytest

from hicache_ref.adapters.failures import ImplementationFailed
from hicache_ref.adapters.inproc import InProcess
from hicache_ref.search.finding import crash
from hicache_ref.vocabulary.adapter import AdapterError, Description
from hicache_ref.vocabulary.keys import Key
from hicache_ref.vocabulary.operations import Reset, TakePages
from hicache_ref.vocabulary.outcomes import Refused, Took
from hicache_ref.vocabulary.profile import Profile


class Answers:
    """An object with one operation that returns what it was made with."""

    def __init__(self, returned: object) -> None:
        self.returned = returned

    def take_pages(self, rid: str, n: int) -> object:
        """Always the same."""
        return self.returned


TAKE = TakePages(rid="r", n=1)
DESCRIPTION = Description(name="answers", version="1", level="counts")


def test_an_object_offers_what_it_has_methods_for() -> None:
    """Goal: nobody has to list his operations. Method: an object with one of them."""
    assert frozenset({"take_pages"}) == InProcess(Answers(None), DESCRIPTION).describe().operations


def test_an_object_may_return_an_outcome_or_a_dict() -> None:
    """Goal: no import of ours is needed. Method: the same outcome both ways."""
    expected = Took(pages=(3,))
    assert expected == InProcess(Answers(expected), DESCRIPTION).apply(TAKE)
    assert expected == InProcess(Answers({"kind": "took", "pages": [3]}), DESCRIPTION).apply(TAKE)


class OfStates:
    """An object that tells what it was asked for."""

    def take_pages(self, **fields: object) -> object:
        """A refusal that names what was asked."""
        return Refused(why=", ".join(fields))


def test_what_only_a_hybrid_model_asks_is_left_out_where_it_is_not_asked() -> None:
    """Goal: objects without states need not know of them. Method: the same operation with a prefix and without."""
    adapter = InProcess(OfStates(), DESCRIPTION)
    assert Refused(why="rid, n") == adapter.apply(TAKE)
    assert Refused(why="rid, n, prefix") == adapter.apply(TakePages(rid="r", n=1, prefix=Key(tokens=(1,))))


def test_what_is_no_outcome_is_a_failure_of_the_object() -> None:
    """Goal: a forgotten return is named as such. Method: None."""
    with pytest.raises(ImplementationFailed, match="take_pages returned something else than an outcome"):
        InProcess(Answers(None), DESCRIPTION).apply(TAKE)


def test_an_object_must_be_made_new_and_be_seen() -> None:
    """Goal: what is missing is said in one line. Method: an object without reset and observe."""
    adapter = InProcess(Answers(None), DESCRIPTION)
    with pytest.raises(AdapterError, match=r"Answers has no method reset\(profile\)"):
        adapter.reset(Profile())
    with pytest.raises(AdapterError, match=r"Answers has no method observe\(level\)"):
        adapter.observe("counts")


class Unready(Answers):
    """An object that cannot be made new, nor do anything."""

    def reset(self, profile: Profile) -> None:
        """Raises."""
        raise KeyError("no such pool")

    def take_pages(self, rid: str, n: int) -> object:
        """Raises."""
        raise KeyError("no such page")


def test_what_an_object_raises_is_told_with_file_and_line() -> None:
    """Goal: the line to look at is in the report. Method: an object that raises in a reset and in a step."""
    adapter = InProcess(Unready(None), DESCRIPTION)
    with pytest.raises(AdapterError, match=r"raised KeyError: 'no such pool' \(.*test_inproc\.py:\d+\)$"):
        adapter.reset(Profile())
    with pytest.raises(KeyError) as caught:
        adapter.apply(TAKE)
    found = crash(caught.value, TAKE, "HC-CONF-01")

    assert "KeyError in take_pages" == found.raised
    assert re.fullmatch(r"KeyError: 'no such page' \(.*test_inproc\.py:\d+\)", found.text)


class Clearable(Answers):
    """An object with both resets."""

    def reset(self, profile: Profile) -> None:
        """As new, for the profile."""
        self.returned = {"kind": "took", "pages": (profile.sizes.device_pages,)}

    def clear(self) -> object:
        """The operation `reset`."""
        return {"kind": "refused", "why": "work in flight"}


def test_the_operation_reset_is_the_method_clear() -> None:
    """Goal: the verb and the operation of that name are told apart. Method: an object with both."""
    adapter = InProcess(Clearable(None), DESCRIPTION)
    adapter.reset(Profile())
    assert frozenset({"take_pages", "reset"}) == adapter.describe().operations
    assert Refused(why="work in flight") == adapter.apply(Reset())
    assert Took(pages=(6,)) == adapter.apply(TAKE)
