"""The catalogue: every requirement with its text, as `spec/requirements.toml` states it."""

import tomllib
from collections.abc import Iterator, Mapping
from functools import cache, cached_property
from hashlib import sha256
from importlib.resources import files
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, TypeAdapter

from hicache_ref.requirements.reach import Reach
from hicache_ref.vocabulary.base import Frozen
from hicache_ref.vocabulary.observation import Level

Kind = Literal["always", "step", "sometimes", "eventually"]
By = Literal["state", "oracle", "storage"]

COMMON = 3_000
"""`within` of what comes up all the time."""


class Requirement(Frozen):
    """One numbered rule."""

    id: Annotated[str, Field(pattern=r"^HC-[A-Z]+-\d\d$")]
    kind: Kind
    text: str
    why: str
    level: Level = "tree"
    """What an implementation has to show for the rule to be judged."""

    by: By = "state"
    """What judges it: states alone, only an oracle that compares, or trying a store (`hicache-ref storage check`)."""

    since: str | None = None
    until: str | None = None
    """Versions of SGLang between which the rule holds there; None: all."""

    origin: tuple[str, ...] = ()
    """Where it comes from: `I` invariants, `D` and `R` defects of the seeds, `OR` observations, `SG` public bugs."""

    implies: tuple[str, ...] = ()
    """Weaker requirements: one of them is broken whenever only this one seems to be."""

    when: tuple[Mapping[str, tuple[str | int | bool, ...]], ...] = ()
    """Alternatives: the rule can be exercised if one of them holds; empty: always.

    One names rules with the values that will do, and `operations` and `traits` (see `reach`), which must all be there.
    """

    within: Annotated[int, Field(ge=1)] = COMMON
    """Steps of walks after which a check promises that it was met, if it can be."""

    @property
    def area(self) -> str:
        """The middle of the id."""
        return self.id.split("-")[1]

    @cached_property
    def digest(self) -> str:
        """The first 8 hex digits of SHA-256 of the text."""
        return sha256(self.text.encode()).hexdigest()[:8]

    def applies(self, reach: Reach) -> bool:
        """Whether walks that have this to go by can exercise it."""
        return not self.when or any(_holds(each, reach) for each in self.when)


def _holds(condition: Mapping[str, tuple[str | int | bool, ...]], reach: Reach) -> bool:
    """Whether every rule named has one of its values, and all operations and traits named are there."""
    needed = {"operations": reach.operations, "traits": reach.traits}
    return all(
        needed[name].issuperset(map(str, wanted)) if name in needed else getattr(reach.rules, name) in wanted
        for name, wanted in condition.items()
    )


_FILE: TypeAdapter[dict[str, Requirement]] = TypeAdapter(dict[str, Requirement])


def _source() -> str:
    """The text of the catalogue: the packaged copy, in a checkout the original."""
    packaged = files("hicache_ref.requirements") / "requirements.toml"
    if packaged.is_file():
        return packaged.read_text(encoding="utf-8")
    return (Path(__file__).parents[2] / "spec" / "requirements.toml").read_text(encoding="utf-8")


def _read(source: str) -> dict[str, Requirement]:
    """The requirements of a catalogue file. Raises pydantic.ValidationError or tomllib.TOMLDecodeError."""
    return _FILE.validate_python({name: {"id": name} | entry for name, entry in tomllib.loads(source).items()})


REQUIREMENTS: dict[str, Requirement] = _read(_source())
"""All requirements by id, in the order of the file: by area, then by number."""


@cache
def catalogue_digest() -> str:
    """8 hex digits that change when any text does."""
    text = "".join(f"{each.id}{each.digest}" for each in REQUIREMENTS.values())
    return sha256(text.encode()).hexdigest()[:8]


def implied(requirement: str) -> Iterator[str]:
    """All weaker requirements, directly or through others."""
    for weaker in REQUIREMENTS[requirement].implies if requirement in REQUIREMENTS else ():
        yield weaker
        yield from implied(weaker)
