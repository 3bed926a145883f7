"""Which function judges which requirement, and on which steps.

A judge returns how many subjects it looked at, or raises `Broken`. Judges of kind `always` see one state, those of
kind `step` what changed between two, `eventually` a quiescent state; a witness says whether something rare happened.
"""

from collections.abc import Callable
from typing import Any, Literal, NamedTuple, TypeVar

from hicache_ref.requirements.change import Change
from hicache_ref.requirements.view import PART, Part, View

Always = Callable[[View], int]
StepJudge = Callable[[Change[Any, Any]], int]
Witness = Callable[[Change[Any, Any]], bool]

_A = TypeVar("_A", bound=Always)
_S = TypeVar("_S", bound=StepJudge)
_W = TypeVar("_W", bound=Witness)


class Broken(AssertionError):
    """A requirement does not hold: `requirement` is its id, `text` says where and how."""

    def __init__(self, requirement: str, text: str, falls: tuple[str, ...] = ()) -> None:
        super().__init__(requirement, text)
        self.requirement = requirement
        self.text = text
        self.falls = falls
        """The other requirements that are broken in the same step."""

    @classmethod
    def because(cls, text: str) -> "Broken":
        """What a judge raises; whoever called it knows the id."""
        return cls("", text)

    def __str__(self) -> str:
        return f"{self.requirement}: {self.text}"


About = Literal["books", "storage"]
Need = Literal["nodes", "events", "effects", "victims", "storage"]


class StateJudge(NamedTuple):
    """A judge of states, the parts of a view that it looks at, and what it is about, if there may be nothing of it.

    A state whose parts have not changed since it was last judged has nothing new to show. Where no operation is on the
    books, a judge about `books` has nothing to see at all, nor has one about `storage` where storage is neither
    attached nor at work. Asking none of them then is what makes checking every step affordable.
    """

    judge: Always
    parts: int
    """The sum of the bits of these parts."""

    about: About | None


class Scope(NamedTuple):
    """The steps that a judge or a witness is asked about."""

    ops: tuple[str, ...]
    """Operations; empty: all."""

    told: tuple[str, ...]
    """Kinds of outcome; empty: all but `Invalid`."""

    needs: Need | None = None
    """What the step must have: a node that changed, events, effects, victims, or storage, before or after."""

    def includes(self, op: str, told: str, has: frozenset[str]) -> bool:
        """Whether a step with this operation, this kind of outcome and these traits is one of them."""
        wanted = told in self.told if self.told else told != "invalid"
        return wanted and (not self.ops or op in self.ops) and (self.needs is None or self.needs in has)


ALWAYS: dict[str, StateJudge] = {}
STEP: dict[str, tuple[Scope, StepJudge]] = {}
EVENTUALLY: dict[str, Always] = {}
WITNESS: dict[str, tuple[Scope, Witness]] = {}
FACT: dict[str, str] = {}
"""Witnesses that the model states itself: fact -> requirement."""


def always(requirement: str, *parts: Part, about: About | None = None) -> Callable[[_A], _A]:
    """The function judges this requirement in every state; it looks at these parts of the view and no other."""

    def register(judge: _A) -> _A:
        ALWAYS[requirement] = StateJudge(judge, sum([PART[part] for part in parts]), about)
        return judge

    return register


def step(requirement: str, *ops: str, told: tuple[str, ...] = (), needs: Need | None = None) -> Callable[[_S], _S]:
    """The function judges this requirement in steps of these operations that told one of `told`."""

    def register(judge: _S) -> _S:
        STEP[requirement] = Scope(ops, told, needs), judge
        return judge

    return register


def eventually(requirement: str) -> Callable[[_A], _A]:
    """The function judges this requirement where nothing is pending."""

    def register(judge: _A) -> _A:
        EVENTUALLY[requirement] = judge
        return judge

    return register


def sometimes(requirement: str, *ops: str, told: tuple[str, ...] = ()) -> Callable[[_W], _W]:
    """The function tells whether this witness was reached in a step of these operations that told one of `told`."""

    def register(witness: _W) -> _W:
        WITNESS[requirement] = Scope(ops, told), witness
        return witness

    return register
