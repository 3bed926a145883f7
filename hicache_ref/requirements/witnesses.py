"""Witnesses: what a search must have met, or its silence means nothing.

Those that the model states itself are facts; the others are told from the step and the states around it.
"""

from itertools import pairwise
from typing import Any

from hicache_ref.requirements.change import Change
from hicache_ref.requirements.registry import FACT, sometimes
from hicache_ref.vocabulary.ids import KV_HOST
from hicache_ref.vocabulary.operations import Forward, Insert, LoadBack, Operation
from hicache_ref.vocabulary.outcomes import Evicted, Inserted, Matched, Outcome, Polled, Refused, Submitted

Seen = Change[Operation, Outcome]

FACT.update(
    {
        "split_under_backup": "HC-TREE-50",
        "split_under_load_or_forward": "HC-TREE-51",
        "split_under_lock": "HC-TREE-52",
        "split_of_host_only": "HC-TREE-53",
        "match_reaches_host": "HC-MATCH-50",
        "revived": "HC-INSERT-50",
        "lock_on_host_only": "HC-LOCK-50",
        "receipt_told": "HC-LOCK-51",
        "demoted": "HC-EVICT-50",
        "staged": "HC-EVICT-51",
        "dropped_with_host_only_below": "HC-EVICT-52",
        "room_has_to_be_waited_for": "HC-EVICT-53",
        "page_given_up_under_operation": "HC-PAGE-50",
        "backup_of_chain": "HC-BACKUP-50",
        "backup_found_no_room": "HC-BACKUP-51",
        "policy_changed_in_flight": "HC-BACKUP-52",
        "evicted_inside_load": "HC-LOAD-50",
        "load_found_no_room": "HC-LOAD-51",
        "copy_to_host_waits_for_another": "HC-XFER-50",
        "copy_to_device_waits_for_another": "HC-XFER-51",
        "forward_waits_for_load": "HC-XFER-52",
        "copy_to_host_failed": "HC-XFER-53",
        "copy_to_device_failed": "HC-XFER-54",
        "doomed_copy": "HC-XFER-55",
        "doomed_forward": "HC-XFER-56",
        "staged_node_lost": "HC-XFER-57",
        "failed_backup_of_resident": "HC-XFER-58",
        "resident_below_failed_load": "HC-XFER-59",
        "tombstone": "HC-STATE-50",
        "cascade": "HC-STATE-51",
        "late_state": "HC-STATE-52",
        "state_attached_to_backed_up": "HC-STATE-53",
        "state_existed": "HC-STATE-54",
        "state_lost_by_demotion": "HC-STATE-55",
        "load_of_kv_and_state": "HC-STATE-56",
        "load_of_state": "HC-STATE-57",
        "load_for_request": "HC-STATE-58",
        "state_copied_for_request": "HC-STATE-59",
        "state_part_failed": "HC-STATE-60",
        "lock_on_tombstone": "HC-STATE-61",
        "state_room_has_to_be_waited_for": "HC-STATE-62",
        "left_under_write_back": "HC-STATE-63",
        "copy_to_request_failed": "HC-STATE-64",
        "copy_to_request_waits_for_another": "HC-STATE-65",
        "state_copied_before_it_goes": "HC-STATE-73",
    }
)


@sometimes("HC-STATE-66", "match_prefix")
def branching(change: Change[Operation, Matched]) -> bool:
    """KV reached beyond the last state, so that a state is worth keeping there."""
    return change.told.branching > 0


@sometimes("HC-TREE-54", "insert")
def two_namespaces(change: Seen) -> bool:
    """Two nodes below the root begin with the same page in different namespaces."""
    top = [row.key[0] for row, above in change.after.pairs if above is change.after.root]
    return len(set(top)) < len(top)


@sometimes("HC-INSERT-51", "insert")
def chunked(change: Change[Insert, Inserted]) -> bool:
    """A chunk of a request was inserted."""
    return change.op.chunked


@sometimes("HC-INSERT-52", "insert")
def revived_under_backup(change: Change[Insert, Inserted]) -> bool:
    """A node got device pages back while the copy to its host pages was on the books."""
    written = change.before.host.written
    return bool(written) and any(
        row.device is None and row.host is not None and written.intersection(row.host)
        for row, _ in change.before.cached(change.hashes)
    )


@sometimes("HC-INSERT-53", "insert")
def duplicates(change: Change[Insert, Inserted]) -> bool:
    """A request gave back pages that another one had inserted in the meantime."""
    return bool(change.told.given_back)


@sometimes("HC-INSERT-54", "insert")
def inserted_before_written(change: Change[Insert, Inserted]) -> bool:
    """Pages were inserted while the pass that writes them ran."""
    return change.op.rid in change.before.passes


@sometimes("HC-EVICT-54", "evict", "take_pages", "load_back", "insert", "write_backup")
def host_evicted_under_load(change: Change[Any, Any]) -> bool:
    """Host nodes were evicted to make room while a load read other host pages."""
    reading = any(ticket.to == "device" and ticket.good is None for ticket in change.before.tickets.values())
    return reading and any(pool == KV_HOST for pool, _ in change.what.victims)


@sometimes("HC-EVICT-55", "evict")
def evicted_up_the_path(change: Change[Any, Evicted]) -> bool:
    """One eviction took a node and then the one above it."""
    places = [change.before.where.get(digest) for _, digest in change.what.victims]
    rows = [place[0] for place in places if place is not None]
    return any(below.parent == above.id for below, above in pairwise(rows))


@sometimes("HC-LOAD-52", "load_back")
def chain_loaded(change: Change[LoadBack, Submitted]) -> bool:
    """One load filled several nodes."""
    effects = change.what.effects
    return isinstance(change.told, Submitted) and any(
        effect.kind == "copy_to_device" and len(effect.parts) > 1 for effect in effects
    )


@sometimes("HC-LOAD-53", "load_back")
def load_of_pending_backup(change: Change[LoadBack, Submitted]) -> bool:
    """A load reads host pages that a backup still writes."""
    written = change.before.host.written
    return bool(written) and any(
        effect.kind == "copy_to_device" and any(written.intersection(part.host) for part in effect.parts)
        for effect in change.what.effects
    )


@sometimes("HC-LOAD-54", "load_back")
def over_quota(change: Change[LoadBack, Refused]) -> bool:
    """A load was refused for its quota although its pages were free."""
    return isinstance(change.told, Refused) and change.op.quota is not None and not change.told.wait_for


@sometimes("HC-XFER-60", "write_backup", "load_back", "insert", "evict", "take_pages")
def two_copies(change: Change[Any, Any]) -> bool:
    """Two copies run at once."""
    return sum([ticket.good is None for ticket in change.after.tickets.values()]) > 1


@sometimes("HC-XFER-61", "copy_failed")
def part_failed(change: Change[Any, Any]) -> bool:
    """A copy failed behind parts that are in place."""
    return bool(change.op.first_failed)


@sometimes("HC-XFER-62", "copy_failed")
def failed_after_split(change: Change[Any, Any]) -> bool:
    """A copy failed whose part had become the pages of two nodes."""
    after = change.after
    ticket = after.tickets.get(change.op.ticket) if change.told.kind == "done" else None
    if ticket is None:
        return False
    held = (after.host if ticket.to == "host" else after.device).held
    sides = [part.host if ticket.to == "host" else part.device for part in ticket.parts]
    return any(len({held.get(page) for page in pages} - {None}) > 1 for pages in sides)


@sometimes("HC-XFER-63", "poll")
def poll_leaves_some(change: Change[Any, Polled]) -> bool:
    """A poll left ended copies on the books, because fewer were agreed on or one before them runs."""
    return any(ticket.good is not None for ticket in change.after.tickets.values())


@sometimes("HC-XFER-64", "forward")
def forward_reads_load(change: Change[Forward, Any]) -> bool:
    """A forward pass began that reads what a load still fills."""
    names = {name for effect in change.what.effects for name in effect.after}
    return any(name.startswith("d:") for name in names)


@sometimes("HC-CONF-50", "set_write_policy")
def policy_refused(change: Seen) -> bool:
    """A change of policy was refused because host data would lack its prefix."""
    return isinstance(change.told, Refused)


@sometimes("HC-LIFE-50", "reset")
def reset_refused(change: Seen) -> bool:
    """A reset had to wait for work in flight."""
    return isinstance(change.told, Refused)


@sometimes("HC-LIFE-51", "reset")
def reset_of_full_cache(change: Seen) -> bool:
    """A reset took place with nodes in the tree and receipts out."""
    return change.told.kind == "done" and bool(change.before.rows) and bool(change.before.receipts)
