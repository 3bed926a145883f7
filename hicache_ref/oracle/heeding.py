"""What is done about known divergences: a run goes on after some, and a search makes no step that leads to others."""

from collections.abc import Iterator, Sequence

from hicache_ref.oracle.known import Known, watched
from hicache_ref.oracle.lockstep import Lockstep
from hicache_ref.search.finding import Finding


def covering(known: Sequence[Known], finding: Finding, lockstep: Lockstep) -> Iterator[Known]:
    """The entries that are this finding."""
    steps = [step.op for step in lockstep.steps]
    return (each for each in known if each.covers(finding, steps, lockstep.met))


def go_on_after(known: Sequence[Known], lockstep: Lockstep) -> None:
    """The lockstep looks for the triggers of these, and goes on after those that say so."""
    lockstep.watched = watched(known)
    lockstep.forgives = lambda finding: any(each.goes_on for each in covering(known, finding, lockstep))


def keep_out_of(known: Sequence[Known], lockstep: Lockstep) -> None:
    """No step of a search is a trigger of these, nor a call after which the implementation may do anything."""
    lockstep.left_out = watched(known)
    lockstep.only_valid = lockstep.description.invalid != "refuses"
