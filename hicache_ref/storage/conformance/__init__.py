"""The conformance kit: what every store has to keep, tried on one.

A store is anything with the calls of `Backend`, or with those of SGLang's HiCacheStorage. The kit writes under keys
that nobody else has, so it may run beside other users of the store. It empties the store only if it is allowed to, else
what it stored stays there.
"""

import re
import threading
import time
from collections.abc import Collection
from contextlib import suppress
from functools import partial
from operator import attrgetter
from uuid import uuid4

from hicache_ref.storage.base import Malformed
from hicache_ref.storage.config import StorageConfig
from hicache_ref.storage.conformance import lifecycle, measures, names, presence, writers
from hicache_ref.storage.conformance.kit import Broken, Kit, NotJudged, Subject, Terms
from hicache_ref.storage.conformance.rules import RULES, Rule
from hicache_ref.storage.foreign import ForeignBackend, Values
from hicache_ref.storage.registry import KINDS, guest_url, open_backend, parse_url
from hicache_ref.vocabulary.base import Frozen

__all__ = ["CONFIG", "RULES", "Finding", "Report", "Result", "Subject", "Terms", "check", "subject_of"]

JUDGES = (presence, names, lifecycle, measures, writers)
"""The modules of rules, which enter theirs when they are imported."""

CONFIG = StorageConfig(model_name="hicache-ref/conformance", page_size=16)
"""Under which the kit stores unless it is given another."""


class Result(Frozen):
    """What came of one rule's judge."""

    rule: str
    judged: int
    """Subjects: answers, pages, keys; 0 where it was broken or not judged."""

    calls: int
    seconds: float
    broken: str | None = None
    breaks: str = ""
    """The rule that does not hold: this one, or another that the judge relies on."""

    operation: str = ""
    """The call at which it broke."""

    through: str = ""
    """The handle, or the other process, that made it."""

    story: tuple[str, ...] = ()
    """The last calls before, with their answers."""

    not_judged: str | None = None
    """Why, if so."""

    @property
    def fault(self) -> tuple[str, str]:
        """What is equal for two breaks of one fault: what is told, without names and numbers, and the rule.

        An error is the same fault whatever rule was tried when it was raised.
        """
        told = _NAMES.sub("*", self.broken or "")
        return ("", told) if told.startswith(_RAISES) else (self.breaks, told)


_RAISES = "raises "
_NAMES = re.compile(r"[0-9a-fA-F]{8,}|\d+")


class Finding(Frozen):
    """A fault of the store, told once however many judges met it."""

    result: Result
    also: tuple[str, ...]
    """The rules whose judges met it too."""


class Report(Frozen):
    """What came of a check."""

    url: str
    seed: int
    seconds: float
    results: tuple[Result, ...]
    values: Values | None = None
    """What a foreign object was handed pages as."""

    @property
    def findings(self) -> tuple[Finding, ...]:
        """The faults found. Of the judges that met one, that of the broken rule tells it, else the first."""
        met: dict[tuple[str, str], list[Result]] = {}
        for each in self.results:
            if each.broken is not None:
                met.setdefault(each.fault, []).append(each)
        return tuple(_finding(results) for results in met.values())


def _finding(results: list[Result]) -> Finding:
    told = next((each for each in results if each.rule == each.breaks), results[0])
    return Finding(result=told, also=tuple(each.rule for each in results if each is not told))


def subject_of(url: str) -> Subject:
    """The store of the URL. Raises Misuse for a bad one; nothing is opened yet."""
    scheme, guest = parse_url(url).scheme, guest_url(url)
    shared = KINDS[scheme].shared if scheme in KINDS else None
    return Subject(url, partial(open_backend, url), partial(open_backend, guest), guest, shared)


def check(subject: Subject, terms: Terms = Terms(CONFIG), only: Collection[str] = ()) -> Report:  # noqa: B008 - frozen
    """Every rule, or those in `only`, has been tried on the store.

    Raises Misuse and StorageError where the store cannot be opened at all.
    """
    began = time.monotonic()
    opened = subject.open(terms.config)
    run = uuid4().hex
    results: list[Result] = []
    for rule in sorted(RULES.values(), key=attrgetter("id")):
        if only and rule.id not in only:
            continue
        result = _tried(rule, Kit(subject, opened, rule.id, run, terms), terms.timeout)
        results.append(result)
        if result.broken == _silence(terms.timeout):
            # Who hangs once will hang again, and what hangs cannot be closed.
            break
    else:
        # What goes wrong with these is found by the rules about them.
        with suppress(Exception):
            if terms.clear:
                opened.clear()
        with suppress(Exception):
            opened.close()
    return Report(
        url=subject.url,
        seed=terms.seed,
        seconds=round(time.monotonic() - began, 3),
        results=tuple(results),
        values=opened.values if isinstance(opened, ForeignBackend) else None,
    )


def _silence(timeout: float) -> str:
    return f"no answer within {timeout:g} s"


def _tried(rule: Rule, kit: Kit, timeout: float) -> Result:
    """What came of the rule."""
    began = time.monotonic()
    came: list[int | BaseException] = []

    def judge() -> None:
        try:
            came.append(rule.judge(kit))
        except BaseException as error:
            came.append(error)

    thread = threading.Thread(target=judge, daemon=True)
    thread.start()
    seen = -1
    try:
        while thread.is_alive() and seen != kit.log.events:
            seen = kit.log.events
            thread.join(timeout)
    finally:
        kit.end(hung=not came)
    return _result(rule.id, came[0] if came else Broken(_silence(timeout)), kit, time.monotonic() - began)


def _result(name: str, came: int | BaseException, kit: Kit, seconds: float) -> Result:
    told = Result(rule=name, judged=0, calls=kit.log.calls, seconds=round(seconds, 3))
    if isinstance(came, int):
        return told.model_copy(update={"judged": came})
    if isinstance(came, NotJudged):
        return told.model_copy(update={"not_judged": str(came)})
    broken = {"operation": kit.log.operation, "through": kit.log.through, "story": tuple(kit.log.lines)}
    if isinstance(came, Malformed):
        came = Broken(str(came), "HC-STORE-22")
    if isinstance(came, Broken):
        return told.model_copy(update=broken | {"breaks": came.rule or name, "broken": came.what})
    if isinstance(came, Exception):
        return told.model_copy(update=broken | {"breaks": name, "broken": f"{_RAISES}{type(came).__name__}: {came}"})
    raise came
