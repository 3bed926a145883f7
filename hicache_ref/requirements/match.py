"""MATCH: what a look-up tells is what was cached, and it changes nothing but recency and node ends."""

from typing import NamedTuple

from hicache_ref.requirements.change import Change
from hicache_ref.requirements.registry import Broken, step
from hicache_ref.requirements.view import View
from hicache_ref.vocabulary.ids import PageHash
from hicache_ref.vocabulary.keys import Key
from hicache_ref.vocabulary.operations import Insert, Lock, MatchPrefix
from hicache_ref.vocabulary.outcomes import Done, Inserted, Matched

Match = Change[MatchPrefix, Matched]


def _depth(key: Key, longer: Key, view: View) -> int:
    """The number of pages of `key`, which must be the beginning of `longer`."""
    if key.tokens != longer.tokens[: len(key.tokens)] or (key.tokens and key.extra != longer.extra):
        raise Broken.because(f"{key} is not on the path of {longer}")
    return view.page_count(key)


class Ends(NamedTuple):
    """How many pages of a key lie above its device end and its best end, and on how many KV is resident."""

    device: int
    best: int
    resident: int


def ends(view: View, hashes: tuple[PageHash, ...]) -> Ends:
    """Where a match of these pages ends: of a hybrid model at nodes with a state (HC-STATE-03)."""
    found = view.cached(hashes)
    resident = sum([row.device is not None for row, _ in found])
    if not view.profile.state:
        return Ends(resident, len(found), resident)
    whole = [(at, row) for at, (row, index) in enumerate(found, 1) if index + 1 == len(row.hashes)]
    best = max([at for at, row in whole if row.has_state], default=0)
    device = max([at for at, row in whole if row.device is not None and row.device_state is not None], default=0)
    return Ends(device, best, resident)


@step("HC-MATCH-01", "match_prefix")
def ends_fit(change: Match) -> int:
    """The device pages are as many as the last device node is deep, and all ends are on one path."""
    told, view = change.told, change.after
    _depth(told.best, change.op.key, view)
    _depth(told.last_host_node, told.best, view)
    depth = _depth(told.last_device_node, told.best, view)
    if len(told.device) != depth:
        raise Broken.because(f"{len(told.device)} device pages, but the last device node is {depth} pages deep")
    return 1


@step("HC-MATCH-02", "match_prefix")
def longest_prefix(change: Match) -> int:
    """The match is the longest cached prefix in whole pages, as it was before."""
    told, before = change.told, change.before
    found, reach = before.cached(change.hashes), ends(before, change.hashes)
    device = tuple([row.device[at] for row, at in found[: reach.device] if row.device is not None])
    if told.device != device:
        raise Broken.because(f"device pages {told.device} are told, {device} hold the key")
    if told.host_hit != reach.best - len(device):
        raise Broken.because(f"{told.host_hit} pages are told to be on host only, {reach.best - len(device)} are")
    if before.page_count(told.best) != reach.best:
        raise Broken.because(f"{told.best} is told to be the best end, {reach.best} pages are cached")
    deepest = reach.best
    if before.rules.last_host_node == "backed":
        while deepest and found[deepest - 1][0].host is None:
            deepest -= 1
    if before.page_count(told.last_host_node) != deepest:
        raise Broken.because(f"{told.last_host_node} is told to be the last host node, it is {deepest} pages deep")
    end = found[deepest - 1][0] if deepest else None
    slots = int(end is not None and end.host_state is not None and end.device_state is None)
    if told.state_host_hit != slots:
        raise Broken.because(
            f"{told.state_host_hit} states are told to be on host only at the last host node, {slots} are"
        )
    return 1


@step("HC-MATCH-03", "match_prefix", "lock", "insert")
def path_is_used(change: Change[MatchPrefix | Lock | Insert, Matched | Done | Inserted]) -> int:
    """Every node of the path was used in this step, each one later than the one above it."""
    if isinstance(change.op, Lock) and change.op.at == "node":
        return 0
    after = change.after
    found = after.cached(change.hashes)
    if not isinstance(change.op, Insert):
        found = found[: ends(after, change.hashes).best]
    if not found:
        return 0
    path = list(after.up(found[-1][0]))
    later = None
    for row in path:
        if later is not None and row.last >= later:
            raise Broken.because(f"node {row.id} was used at {row.last}, not before the node below it at {later}")
        later = row.last
    if path[-1].last <= change.before.clock:
        raise Broken.because(f"node {path[-1].id} was last used at {path[-1].last}, before this step")
    return len(path)


@step("HC-MATCH-05", "match_prefix", "lock", "insert")
def nothing_else_is_used(change: Change[MatchPrefix | Lock | Insert, Matched | Done | Inserted]) -> int:
    """No node off the path was used in this step; by the rule split_stamps = both the rest of one that was split."""
    before, after = change.before, change.after
    found = after.cached(change.hashes)
    if not isinstance(change.op, Insert):
        found = found[: ends(after, change.hashes).best]
    matches = not (isinstance(change.op, Lock) and change.op.at == "node")
    allowed = {row.id for row, _ in found} if matches else set()
    if after.rules.split_stamps == "both":
        new = after.row.keys() - before.row.keys()
        allowed |= new | {row.id for row in after.rows if row.parent in new and row.id in before.row}
    off = [row.id for row in after.rows if row.last > before.clock and row.id not in allowed]
    if off:
        raise Broken.because(f"nodes {off} were used in this step, and are not on the path of {change.op.key}")
    return len(found)


@step("HC-MATCH-04", "match_prefix")
def looking_changes_nothing(change: Match) -> int:
    """Copies, locks, contents, receipts and operations are as before; only ends and recency of nodes may differ."""
    before, after = change.before, change.after
    same_nodes = before.row.keys() == after.row.keys()
    if same_nodes:
        kept = all(row[:-2] == after.row[row.id][:-2] for row in before.rows)
    else:
        kept = _by_page(before) == _by_page(after)
    if not kept:
        raise Broken.because("a look-up changed the copies or the locks of a page")
    for mine, its in zip(before.pools(), after.pools(), strict=True):
        if (mine.free, mine.stamp) != (its.free, its.stamp):
            raise Broken.because(f"a look-up changed pool {mine.name}")
    same = before.requests == after.requests and before.passes == after.passes and before.policy == after.policy
    if not same or list(before.tickets) != list(after.tickets) or before.receipts.keys() != after.receipts.keys():
        raise Broken.because("a look-up changed requests, receipts or operations")
    return 1


def _by_page(view: View) -> dict[PageHash, tuple[int | None, int | None, int]]:
    """Device page, host page and lock count of every cached page."""
    return {
        digest: (None if row.device is None else row.device[at], None if row.host is None else row.host[at], row.lock)
        for digest, (row, at) in view.where.items()
    }
