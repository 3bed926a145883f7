"""CONF: lawful answers, refusals without traces, and sizes. What compares with the model is the oracle's."""

import math

from hicache_ref.requirements.change import Change
from hicache_ref.requirements.registry import Broken, always, step
from hicache_ref.requirements.view import View
from hicache_ref.vocabulary.ids import ROOT
from hicache_ref.vocabulary.operations import Audit, LoadBack, Operation, SetWritePolicy
from hicache_ref.vocabulary.outcomes import Audited, Done, Invalid, Matched, Outcome, Refused
from hicache_ref.vocabulary.profile import WritePolicy
from hicache_ref.vocabulary.storage import PREFETCH_POLICIES


@step("HC-CONF-03", "set_write_policy")
def policy_changes(change: Change[SetWritePolicy, Done | Refused]) -> int:
    """The policy is the one asked for, or refused while host data would lack its prefix under it."""
    before, op = change.before, change.op
    gap = leaves_gap(before, op.policy)
    if isinstance(change.told, Refused) != gap:
        raise Broken.because(f"a change to {op.policy} is {change.told.kind}, {'a' if gap else 'no'} prefix is missing")
    expected = before.policy if gap else op.policy
    if change.after.policy != expected:
        raise Broken.because(f"the policy is {change.after.policy}, expected {expected}")
    return 1


def leaves_gap(view: View, policy: WritePolicy) -> bool:
    """Whether host data lies below a node without a host copy, which write_back allows and this policy does not."""
    if not view.rules.contiguity or view.policy != "write_back" or policy == "write_back":
        return False
    return any(row.host is not None and above.host is None for row, above in view.pairs)


@step("HC-CONF-04", told=("invalid",))
def invalid_changes_nothing(change: Change[Operation, Invalid]) -> int:
    """A call that broke a precondition changed nothing."""
    what = change.before.differs(change.after)
    if what or change.what.effects or change.what.events:
        raise Broken.because(f"{change.op.op} is invalid ({change.told.why}) and changed {what or 'the world'}")
    return 1


@step("HC-CONF-05", "audit")
def audit_is_true(change: Change[Audit, Audited]) -> int:
    """An audit names every operation on the books and changes nothing."""
    before = change.before
    pending = tuple(sorted([*before.busy, *(["release queue"] if before.storage.release else [])]))
    if change.told.pending != pending:
        raise Broken.because(f"{change.told.pending} are told to be pending, {pending} are")
    what = change.before.differs(change.after)
    if what:
        raise Broken.because(f"an audit changed {what}")
    return 1


@always("HC-CONF-06", "owners", "contents")
def pools_have_their_size(view: View) -> int:
    """The pools have as many pages as the profile says, and owner and contents for each."""
    sizes, device, host = view.profile.sizes, view.device, view.host
    if device.size == len(device.stamp) == sizes.device_pages and host.size == len(host.stamp) == sizes.host_pages:
        return 2
    for pool, count in ((device, sizes.device_pages), (host, sizes.host_pages)):
        if pool.size != count or len(pool.stamp) != count:
            raise Broken.because(f"{pool.name} has {pool.size} pages, the profile says {count}")
    return 2


@step("HC-CONF-10", told=("refused",))
def refused_changes_nothing(change: Change[Operation, Refused]) -> int:
    """A refused call changed nothing, except that it may have evicted to make room.

    What a refused reset or detach may have closed is judged by itself (HC-LIFE-06).
    """
    before, after = change.before, change.after
    if change.op.op in ("reset", "detach"):
        return 0
    if not change.what.victims:
        what = before.differs(after)
        if what in ("clock", "row") and isinstance(change.op, LoadBack):
            what = _more_than_recency(before, after)
        if what or change.what.effects or change.what.events:
            raise Broken.because(f"{change.op.op} was refused ({change.told.why}) and changed {what or 'the world'}")
        return 1
    for name in ("requests", "receipts", "policy"):
        if getattr(before, name) != getattr(after, name):
            raise Broken.because(f"{change.op.op} was refused ({change.told.why}) and changed its {name}")
    if before.storage.open != after.storage.open or before.storage.prefetches != after.storage.prefetches:
        raise Broken.because(f"{change.op.op} was refused ({change.told.why}) and changed a prefetch")
    for row in after.rows:
        was = before.row.get(row.id)
        if was is None or (was.key, was.lock) != (row.key, row.lock):
            raise Broken.because(f"{change.op.op} was refused ({change.told.why}) and changed node {row.id}")
    return 1


def _more_than_recency(before: View, after: View) -> str | None:
    """What differs beside recency: by the rules a refused load has used its path, or the state that it let go again."""
    if not before.rules.load_matches and before.rules.host_states != "arrived":
        return before.differs(after)
    kept = -2 if before.rules.load_matches else -1  # the last two fields: when the node and its state were used
    rows, now = ({row.id: row[:kept] for row in view.rows} for view in (before, after))
    names = ("tickets", "passes", "requests", "receipts", "device_leaves", "host_leaves", "policy")
    same = rows == now and all(getattr(before, name) == getattr(after, name) for name in names)
    pools = all(mine.equals(its) for mine, its in zip(before.pools(), after.pools(), strict=True))
    return None if same and pools and before.storage.equals(after.storage) else "more than when nodes were used"


@step("HC-CONF-11")
def disabled_keeps_nothing(change: Change[Operation, Outcome]) -> int:
    """A cache that is switched off has no node, finds nothing and publishes nothing."""
    told = change.told
    found = isinstance(told, Matched) and (told.device or told.host_hit)
    published = change.what.events and change.op.op != "reset"
    if found or published or change.after.row.keys() - {ROOT}:
        raise Broken.because(f"{change.op.op} finds or keeps something in a disabled cache")
    return 1


@always("HC-CONF-14", "storage", about="storage")
def settings_are_lawful(view: View) -> int:
    """The storage settings in force are a known policy, counts and times that are finite and not negative."""
    settings = view.storage.settings
    most = math.inf if settings.prefetch_timeout_max is None else settings.prefetch_timeout_max
    least, base, per_ki = (
        settings.prefetch_threshold, settings.prefetch_timeout_base, settings.prefetch_timeout_per_ki_token,
    )  # fmt: skip
    finite = 0 <= least < math.inf and 0 <= base < math.inf and base <= most and 0 <= per_ki < math.inf
    if not finite or bool in (type(least), type(base), type(per_ki)):
        raise Broken.because(f"threshold {least} and times {base}, {per_ki}, {most} are in force")
    if settings.prefetch_policy not in PREFETCH_POLICIES:
        raise Broken.because(f"prefetch policy {settings.prefetch_policy} is in force, known are {PREFETCH_POLICIES}")
    return 1
