"""How often nodes were used: what lfu and slru order by."""

from typing import Any

from hicache_ref.requirements.change import Change, came_from
from hicache_ref.requirements.registry import Broken, step
from hicache_ref.requirements.rows import Row
from hicache_ref.vocabulary.operations import Insert
from hicache_ref.vocabulary.outcomes import Inserted, Outcome


@step("HC-EVICT-10", "insert", "match_prefix", "lock", "prefetch", "progress", "poll")
def uses_are_counted(change: Change[Any, Outcome]) -> int:
    """An insert counted a use on each node of its path, as far as the rules say, and nothing else counted one."""
    if change.still:
        return 0
    after, used = change.after, set()
    if isinstance(change.op, Insert) and isinstance(change.told, Inserted):
        found = after.cached(change.hashes)
        depth = len(found)
        for row in after.up(found[-1][0]) if found else ():
            if is_counted(change, row, depth):
                used.add(row.id)
            depth -= len(row.key)
    for row in after.rows:
        source = came_from(change, row)
        expected = (source.uses if source is not None else 0) + (row.id in used)
        if row.uses != expected:
            raise Broken.because(f"node {row.id} counts {row.uses} uses, by the rules {expected}")
    return len(after.rows)


def is_counted(change: Change[Insert, Any], row: Row, depth: int) -> bool:
    """Whether an insert counts on the node of its path that ends at `depth` pages."""
    op, rules, source = change.op, change.before.rules, came_from(change, row)
    again = depth <= op.inserted and not rules.hit_counts_again_for_same_request
    revived = source is not None and source.device is None and not rules.revive_counts_hit
    return not again and not revived and (rules.chunked_counts_hit or not op.chunked)
