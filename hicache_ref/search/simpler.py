"""Simpler traces: what else could be told instead of a trace. Generic over operations; the minimiser tries them all.

Each function gives other traces, in a fixed order. What is not valid any more in one is for the replay to fit or to
leave out.
"""

import re
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import combinations, pairwise, permutations
from typing import Any

from hicache_ref.model import Model
from hicache_ref.search.finding import Recorded
from hicache_ref.vocabulary.keys import Key
from hicache_ref.vocabulary.operations import Forward, Insert, MatchPrefix, Operation, Poll, TakePages

Steps = tuple[Recorded, ...]
Others = Iterator[Steps]

EVERYTHING = Poll(backups=9, loads=9, answers=9, reads=9, writes=9, releases=9)
"""The plainest poll: it applies more ends of each kind than a short trace has."""

_KEYS = ("key", "prefix")
_NAMES = ("rid", "receipt")
_HANDLES = ("ticket", "id")
_COUNTS = ("n", "start", "inserted", "hits", "pages", "draft", "states", "first_failed")
_NO_PLAINER = frozenset({"op", "settings", "backend", "hits", "pages", "states"})
"""Fields whose default is no plainer: few faults show with default settings, and a report of nothing says less."""

_WINDOW_MAX = 6
_HANDLE = re.compile(r"(\w+):(?:(.*)/)?(\d+(?:\.\d+)*)(#\d+)?")


def fitted(op: Operation, model: Model) -> Operation | None:
    """The operation if it may happen now, else itself with smaller counts; None if it may not with any."""
    if model.requires(op) is None:
        return op
    counts = _counts(op)
    for limit in reversed(range(max(counts.values(), default=0))):
        less = _changed(op, **{field: min(count, limit) for field, count in counts.items()})
        if model.requires(less) is None:
            return less
    return None


def weight(steps: Sequence[Recorded]) -> tuple[int, ...]:
    """How much there is to read, most important first: steps, tokens, different keys and names, specials, counts.

    What the minimiser accepts weighs less, so that it ends.
    """
    ops = [step.op for step in steps]
    keys = [key for op in ops for key in _keys(op)]
    names = {(field, name) for op in ops for field in _NAMES if (name := getattr(op, field, None)) is not None}
    special = sum(getattr(op, field) != default for op in ops for field, default in _defaults(op).items())
    return (
        len(ops),
        sum(len(key.tokens) for key in keys),
        len(set(keys)) + sum(key.extra is not None for key in set(keys)) + len(names),
        special + sum(isinstance(op, Poll) and op != EVERYTHING for op in ops),
        sum(sum(_counts(op).values()) for op in ops),
    )


def without(steps: Steps, size: int = 1) -> Others:
    """Without `size` steps in a row. The last step, at which the finding is, stays."""
    for start in range(0, len(steps) - 1, size):
        yield steps[:start] + steps[min(start + size, len(steps) - 1) :]


def without_two(steps: Steps) -> Others:
    """Without some two steps: a lock and its end, a request and what it gives."""
    for gone in combinations(range(len(steps) - 1), 2):
        yield tuple(step for at, step in enumerate(steps) if at not in gone)


def plainer(steps: Steps, model: Model) -> Others:
    """With the same kinds of steps told more plainly, or two told as one; what changes most comes first."""
    yield tuple(step._replace(op=_plain(step.op)) for step in steps)
    yield from _with_a_page_less(steps, model)
    yield from _with_a_key_less(steps, model)
    yield from _with_a_name_less(steps)
    yield from _with_two_reports_joined(steps)
    yield from _with_two_polls_joined(steps)
    yield from _without_a_load(steps, model)
    for at, step in enumerate(steps):
        for op in _plainer_operations(step.op):
            if op != step.op:
                yield (*steps[:at], step._replace(op=op), *steps[at + 1 :])


def with_a_match(steps: Steps) -> Others:
    """With some steps in a row replaced by a match of a key that they name: it may do for them."""
    for size in range(min(_WINDOW_MAX, len(steps) - 1), 1, -1):
        for at in range(len(steps) - size):
            for key in _keys_of(steps[at : at + size]):
                yield (*steps[:at], Recorded(MatchPrefix(key=key)), *steps[at + size :])


# -- parts of an operation ---------------------------------------------------------------------------------------------


def _changed(op: Operation, **fields: Any) -> Operation:
    return op.model_copy(update=fields)


def _keys(op: Operation) -> list[Key]:
    return [key for field in _KEYS if (key := getattr(op, field, None)) is not None]


def _keys_of(steps: Steps) -> list[Key]:
    """Each key once, in order of appearance."""
    return list(dict.fromkeys(key for step in steps for key in _keys(step.op)))


def _counts(op: Operation) -> dict[str, int]:
    return {field: count for field in _COUNTS if (count := getattr(op, field, 0))}


def _defaults(op: Operation) -> dict[str, Any]:
    """The fields that are plainer with their default, and that."""
    if isinstance(op, Poll):
        return {}
    fields = type(op).model_fields.items()
    return {name: field.default for name, field in fields if not field.is_required() and name not in _NO_PLAINER}


def _plain(op: Operation) -> Operation:
    return EVERYTHING if isinstance(op, Poll) else _changed(op, **_defaults(op))


def _plainer_operations(op: Operation) -> Iterator[Operation]:
    """All of it plain, or one field, or one count smaller."""
    yield _plain(op)
    for field, default in _defaults(op).items():
        yield _changed(op, **{field: default})
    for field, count in _counts(op).items():
        for less in (1, count - 1) if count > 1 else ():
            yield _changed(op, **{field: less})


# -- other keys and names ----------------------------------------------------------------------------------------------


def _with_a_page_less(steps: Steps, model: Model) -> Others:
    """Without the page at some place of all keys that have more than one and reach so far; the last place first."""
    for at in reversed(range(max((len(model.pages(key)) for key in _keys_of(steps)), default=0))):
        yield _with_keys(steps, partial(_without_page, model, at), model, gone=at)


def _without_page(model: Model, at: int, key: Key) -> Key:
    size = model.profile.sizes.page_size
    if not 1 < len(model.pages(key)) > at:
        return key
    return key.model_copy(update={"tokens": key.tokens[: at * size] + key.tokens[(at + 1) * size :]})


def _with_a_key_less(steps: Steps, model: Model) -> Others:
    """With some key out of its namespace, cut short, or replaced by another of the trace, wherever it is told."""
    keys = _keys_of(steps)
    for old in keys:
        pages = len(model.pages(old))
        if old.extra is not None:
            yield _with_keys(steps, partial(_swapped, old, old.model_copy(update={"extra": None})), model)
        if pages > 1:
            yield _with_keys(steps, partial(_swapped, old, _without_page(model, pages - 1, old)), model)
        for new in keys:
            if new != old and len(model.pages(new)) <= pages:
                yield _with_keys(steps, partial(_swapped, old, new), model)


def _swapped(old: Key, new: Key, key: Key) -> Key:
    return new if key == old else key


def _with_keys(steps: Steps, to: Callable[[Key], Key], model: Model, gone: int | None = None) -> Steps:
    """With other keys: handles follow, passes start where they can, and a request takes what its pass is to fill.

    Where the page at place `gone` is in no key any more, what started behind it starts one page earlier.
    """
    told: list[Recorded] = []
    filled: dict[str, int] = {}
    """Request -> the pages that its next pass fills."""

    for step in reversed(steps):
        op = step.op
        fields: dict[str, Any] = {field: to(key) for field in _KEYS if (key := getattr(op, field, None)) is not None}
        fields |= {field: _renamed(name, to) for field in _HANDLES if (name := getattr(op, field, None)) is not None}
        if isinstance(op, Forward | Insert):
            pages = len(model.pages(fields["key"]))
            start = op.start - (gone is not None and op.start > gone and fields["key"] != op.key)
            fields["start"] = min(start, pages)
            if isinstance(op, Forward):
                filled[op.rid] = pages - fields["start"]
        elif isinstance(op, TakePages) and op.rid in filled:
            fields["n"] = filled.pop(op.rid)
        told.append(step._replace(op=_changed(op, **fields)))
    return tuple(reversed(told))


def _renamed(handle: str, to: Callable[[Key], Key]) -> str:
    """The handle of the other key; one that does not spell its key stays."""
    parts = _HANDLE.fullmatch(handle)
    if parts is None:
        return handle
    kind, extra, tokens, number = parts.groups()
    return f"{kind}:{to(Key(tokens=tuple(map(int, tokens.split('.'))), extra=extra))}{number or ''}"


def _with_a_name_less(steps: Steps) -> Others:
    """With one request, or one receipt, called as another one."""
    for field in _NAMES:
        names = list(dict.fromkeys(name for step in steps if (name := getattr(step.op, field, None)) is not None))
        for new, old in permutations(names, 2):
            yield tuple(
                step._replace(op=_changed(step.op, **{field: new})) if getattr(step.op, field, None) == old else step
                for step in steps
            )


# -- fewer steps -------------------------------------------------------------------------------------------------------


def _with_two_reports_joined(steps: Steps) -> Others:
    """With one step for two of a kind that are about the same: reports of one batch after another, evictions."""
    for one, other in combinations(range(len(steps)), 2):
        first, second = steps[one].op, steps[other].op
        if first.op != second.op or not _counts(second) or _about(first) != _about(second):
            continue
        both = _changed(second, **{field: count + getattr(first, field) for field, count in _counts(second).items()})
        if other < len(steps) - 1:
            yield (*steps[:one], Recorded(both), *steps[one + 1 : other], *steps[other + 1 :])
        yield (*steps[:one], *steps[one + 1 : other], Recorded(both), *steps[other + 1 :])


def _about(op: Operation) -> list[Any]:
    return [getattr(op, field, None) for field in (*_KEYS, *_NAMES, *_HANDLES)]


def _with_two_polls_joined(steps: Steps) -> Others:
    """With a poll and the next one made one, somewhere between them."""
    polls = [at for at, step in enumerate(steps[:-1]) if isinstance(step.op, Poll)]
    for one, other in pairwise(polls):
        between = steps[one + 1 : other]
        for at in range(1, len(between)):
            yield (*steps[:one], *between[:at], Recorded(EVERYTHING), *between[at:], *steps[other + 1 :])


def _without_a_load(steps: Steps, model: Model) -> Others:
    """With a request that goes on from a state in the tree, and without steps before it that may have loaded it."""
    for at, step in enumerate(steps):
        prefix = _gone_on_from(steps[at:], model)
        for start in range(at if prefix is not None else 0):
            yield (*steps[:start], step._replace(op=_changed(step.op, prefix=prefix)), *steps[at + 1 :])


def _gone_on_from(steps: Steps, model: Model) -> Key | None:
    """What the pass reads of the request that takes pages in the first step, if it names nothing to go on from."""
    op = steps[0].op
    if not isinstance(op, TakePages) or op.prefix is not None:
        return None
    each = next((step.op for step in steps if isinstance(step.op, Forward) and step.op.rid == op.rid), None)
    if each is None or not each.start:
        return None
    return each.key.model_copy(update={"tokens": each.key.tokens[: each.start * model.profile.sizes.page_size]})
