"""INSERT: a key's pages are the tree's afterwards, duplicates come back, the request holds nothing."""

from hicache_ref.requirements.change import Change, came_from
from hicache_ref.requirements.registry import Broken, step
from hicache_ref.vocabulary.operations import Insert
from hicache_ref.vocabulary.outcomes import Inserted

Inserting = Change[Insert, Inserted]


@step("HC-INSERT-01", "insert")
def key_is_resident(change: Inserting) -> int:
    """Every page of the key is resident."""
    found = change.after.cached(change.hashes)
    resident = sum([row.device is not None for row, _ in found])
    if resident != len(change.hashes):
        raise Broken.because(f"{resident} pages of {change.op.key} are resident, it has {len(change.hashes)}")
    return resident


@step("HC-INSERT-02", "insert")
def duplicates_come_back(change: Inserting) -> int:
    """The pages given back are those of the request that were resident already; `prefix` counts what was there."""
    before, op, told = change.before, change.op, change.told
    found = before.cached(change.hashes)
    own = before.requests[op.rid].pages if op.rid in before.requests else ()
    there = [at for at, (row, _) in enumerate(found) if row.device is not None]
    given_back = tuple([own[at - op.start] for at in there if at >= op.start])
    if told.given_back != given_back:
        raise Broken.because(f"pages {told.given_back} were given back, {given_back} are duplicates")
    prefix = len(found) if before.rules.insert_length_counts_revived else len(there)
    if told.prefix != prefix:
        raise Broken.because(f"a prefix of {told.prefix} pages is told, {prefix} were there")
    return len(change.hashes)


@step("HC-INSERT-03", "insert")
def request_is_over(change: Inserting) -> int:
    """The request holds nothing, and what it held is a node's, free or still touched."""
    rid, after = change.op.rid, change.after
    if rid in after.requests:
        raise Broken.because(f"request {rid} still holds {after.requests[rid].pages}")
    return 1


@step("HC-INSERT-04", "insert")
def priority_is_raised(change: Inserting) -> int:
    """No node of the path has less than the insert's priority, none lost any, and none got more."""
    found = change.after.cached(change.hashes)
    path = list(change.after.up(found[-1][0])) if found else []
    for row in path:
        was = came_from(change, row)
        expected = change.op.priority if was is None else max(was.priority, change.op.priority)
        if row.priority != expected:
            raise Broken.because(f"node {row.id} has priority {row.priority}, expected {expected}")
    return len(path)
