"""The conformance kit: what every store has to keep, tried on one.

A store is anything with the calls of `Backend`, or with those of SGLang's HiCacheStorage. The kit writes under keys
that nobody else has, so it may run beside other users of the store. It empties the store only if it is allowed to, else
what it stored stays there.
"""

import threading
import time
from collections.abc import Collection
from operator import attrgetter
from uuid import uuid4

from hicache_ref.storage.base import Misuse, StorageError
from hicache_ref.storage.config import StorageConfig
from hicache_ref.storage.conformance import lifecycle, names, presence, writers
from hicache_ref.storage.conformance.kit import Broken, Kit, NotJudged, Subject
from hicache_ref.storage.conformance.rules import RULES, Rule
from hicache_ref.storage.registry import KINDS, open_backend, parse_url
from hicache_ref.vocabulary.base import Frozen

__all__ = ["CONFIG", "RULES", "Report", "Result", "Subject", "check", "subject_of"]

JUDGES = (presence, names, lifecycle, writers)
"""The modules of rules, which enter theirs when they are imported."""

CONFIG = StorageConfig(model_name="hicache-ref/conformance", page_size=16)
"""Under which the kit stores unless it is given another."""


class Result(Frozen):
    """What came of one rule."""

    rule: str
    judged: int
    """Subjects: answers, pages, keys; 0 where it was broken or not judged."""

    calls: int
    seconds: float
    broken: str | None = None
    operation: str = ""
    """The call at which it broke."""

    story: tuple[str, ...] = ()
    """The last calls before, with their answers."""

    not_judged: str | None = None
    """Why, if so."""


class Report(Frozen):
    """What came of a check."""

    url: str
    seed: int
    seconds: float
    results: tuple[Result, ...]

    @property
    def broken(self) -> tuple[Result, ...]:
        """The results of rules that do not hold."""
        return tuple(each for each in self.results if each.broken is not None)


def subject_of(url: str) -> Subject:
    """The store of the URL. Raises Misuse for a bad one; nothing is opened yet."""
    scheme = parse_url(url).scheme
    if scheme == "object":
        return Subject(url, lambda config: open_backend(url, config), names_by_config=True)
    return Subject(url, lambda config: open_backend(url, config), shared=KINDS[scheme].shared)


def check(subject: Subject, config: StorageConfig = CONFIG, *, seed: int = 0, only: Collection[str] = (),
          timeout: float = 30.0, clear: bool = False) -> Report:  # fmt: skip
    """Every rule, or those in `only`, has been tried; one may take `timeout` seconds, and is broken then.

    Raises Misuse and StorageError where the store cannot be opened at all.
    """
    began = time.monotonic()
    anchor = subject.open(config)
    run = uuid4().hex
    results: list[Result] = []
    try:
        for rule in sorted(RULES.values(), key=attrgetter("id")):
            if only and rule.id not in only:
                continue
            kit = Kit(subject, config, f"{run}/{rule.id}", seed, timeout / 2, clear)
            results += _tried(rule, kit, timeout)
            if results[-1].broken and results[-1].broken.startswith(_SILENCE):
                # Whoever hangs once will hang again, and its thread cannot be ended.
                break
        if clear:
            anchor.clear()
    finally:
        anchor.close()
    return Report(url=subject.url, seed=seed, seconds=round(time.monotonic() - began, 3), results=tuple(results))


_SILENCE = "no answer within"


def _tried(rule: Rule, kit: Kit, timeout: float) -> list[Result]:
    """What came of the rule, and of another if it was that one that broke."""
    began = time.monotonic()
    came: list[int | BaseException] = []

    def judge() -> None:
        try:
            came.append(rule.judge(kit))
        except BaseException as error:
            came.append(error)

    thread = threading.Thread(target=judge, daemon=True)
    thread.start()
    thread.join(timeout)
    if not came:
        came.append(Broken(f"{_SILENCE} {timeout:g} s"))
        kit.end(hung=True)
    else:
        kit.end()
    return [_result(rule.id, came[0], kit, time.monotonic() - began)]


def _result(name: str, came: int | BaseException, kit: Kit, seconds: float) -> Result:
    told = Result(rule=name, judged=0, calls=kit.log.calls, seconds=round(seconds, 3))
    if isinstance(came, int):
        return told.model_copy(update={"judged": came})
    if isinstance(came, NotJudged):
        return told.model_copy(update={"not_judged": str(came)})
    broken = {"operation": kit.log.operation, "story": tuple(kit.log.lines)}
    if isinstance(came, Broken):
        return told.model_copy(update=broken | {"rule": came.rule or name, "broken": came.what})
    if isinstance(came, Misuse | StorageError | Exception):
        return told.model_copy(update=broken | {"broken": f"raises {type(came).__name__}: {came}"})
    raise came
