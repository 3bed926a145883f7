"""Operations, outcomes and keys in few words, for tables that a person reads."""

from collections.abc import Callable
from typing import Any

from hicache_ref.vocabulary import operations as ops
from hicache_ref.vocabulary import outcomes
from hicache_ref.vocabulary.ids import Pages
from hicache_ref.vocabulary.keys import Key
from hicache_ref.vocabulary.operations import Operation
from hicache_ref.vocabulary.outcomes import Outcome

_TOKENS_SHOWN = 12
_STRETCH = 8

Rename = Callable[[int], int]
"""The name under which a device page is shown."""


def key_words(key: Key) -> str:
    """The key as `[1 2 3]`, with its namespace before and the middle of a long one left out."""
    tokens = [str(token) for token in key.tokens]
    if len(tokens) > _TOKENS_SHOWN:
        tokens = [*tokens[: _TOKENS_SHOWN - 2], "..", tokens[-1], f"({len(tokens)})"]
    text = f"[{' '.join(tokens)}]"
    return text if key.extra is None else f"{key.extra}:{text}"


def operation_words(op: Operation) -> str:
    """The operation and what it is asked, defaults left out."""
    words: list[str] = [op.op]
    for name in type(op).model_fields:
        value = getattr(op, name)
        if name != "op" and value != type(op).model_fields[name].default:
            words.append(_argument(op, name, value))
    return " ".join(words)


def _argument(op: Operation, name: str, value: Any) -> str:
    match name:
        case "key":
            return key_words(value)
        case "rid" | "receipt" | "ticket" | "n" | "policy":
            return str(value)
        case "start":
            return f"from {value}"
        case "first_failed":
            return f"from part {value}"
        case "chunked":
            return "chunked"
        case "at":
            return f"at {value}"
        case "backups" if isinstance(op, ops.Poll):
            return f"{value} backup{'s' * (value != 1)}"
        case "loads" if isinstance(op, ops.Poll):
            return f"{value} load{'s' * (value != 1)}"
    return f"{name} {value}"


def _same(page: int) -> int:
    return page


def outcome_words(outcome: Outcome, rename: Rename = _same) -> str:
    """What was told, pages under the names that `rename` gives them."""
    match outcome:
        case outcomes.Done():
            return "done"
        case outcomes.Matched():
            host = f", host +{outcome.host_hit}" if outcome.host_hit else ""
            return f"matched {_pages(outcome.device, rename)}{host}"
        case outcomes.Took():
            return f"took {_pages(outcome.pages, rename)}"
        case outcomes.Inserted():
            back = f", gave back {_pages(outcome.given_back, rename)}" if outcome.given_back else ""
            return f"inserted, prefix {outcome.prefix}{back}"
        case outcomes.Evicted():
            staged = f", staged {outcome.staged}" if outcome.staged else ""
            return f"freed {outcome.freed}{staged}{_waits(outcome.wait_for)}"
        case outcomes.Submitted():
            return f"{' '.join(outcome.tickets) or 'no copy'}, {outcome.pages} page{'s' * (outcome.pages != 1)}"
        case outcomes.Polled():
            ends = (*outcome.backups, *outcome.loads, *outcome.answers, *outcome.reads, *outcome.writes)
            freed = f"{outcome.releases} released" if outcome.releases else ""
            applied = " ".join((*ends, freed)).strip() or "nothing"
            lost = f", lost {' '.join(outcome.lost)}" if outcome.lost else ""
            return f"applied {applied}{lost}"
        case outcomes.Prefetching():
            return f"{outcome.id}, {outcome.pages} page{'s' * (outcome.pages != 1)}"
        case outcomes.Progressed():
            return f"{'may go on' if outcome.done else 'waits'}, {outcome.loaded} loaded"
        case outcomes.Audited():
            return f"pending: {' '.join(outcome.pending)}" if outcome.pending else "all in order"
        case outcomes.Refused():
            return f"refused: {outcome.why}{_waits(outcome.wait_for)}"
        case outcomes.Invalid():
            return f"invalid: {outcome.why}"


def outcome_in_full(outcome: Outcome, rename: Rename = _same) -> str:
    """As `outcome_words`, with the ends of a match, for two answers that the short words do not tell apart."""
    if not isinstance(outcome, outcomes.Matched):
        return outcome_words(outcome, rename)
    ends = (
        f"device end {key_words(outcome.last_device_node)}",
        f"host end {key_words(outcome.last_host_node)}",
        f"best {key_words(outcome.best)}",
    )
    return f"{outcome_words(outcome, rename)}, {', '.join(ends)}"


def _pages(pages: Pages, rename: Rename) -> str:
    """The names of the pages; a stretch of at least `_STRETCH` that count up or down by one is `first..last`."""
    names = [rename(page) for page in pages]
    words: list[str] = []
    at = 0
    while at < len(names):
        end = at + 1
        by = names[end] - names[at] if end < len(names) else 0
        while abs(by) == 1 and end < len(names) and names[end] - names[end - 1] == by:
            end += 1
        if end - at < _STRETCH:
            end = at + 1
        words.append(f"{names[at]}..{names[end - 1]}" if end - at > 1 else str(names[at]))
        at = end
    return "{" + " ".join("?" if word == "-1" else word for word in words) + "}"


def _waits(names: tuple[str, ...] | None) -> str:
    return f", waits for {' '.join(names)}" if names else ""
