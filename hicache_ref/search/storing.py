"""Steps of the storage tier, drawn: what is asked of it, and what the world reports of it."""

from hicache_ref.model.records import BackupWriting, PrefetchReading, Record
from hicache_ref.search.drawing import REQUESTS, Drawing
from hicache_ref.vocabulary import operations as ops
from hicache_ref.vocabulary.operations import Operation
from hicache_ref.vocabulary.profile import WRITE_POLICIES
from hicache_ref.vocabulary.storage import PREFETCH_POLICIES, StorageSettings


def prefetch(d: Drawing) -> Operation | None:
    """A prefetch of a key, for one of two names, so that names come back."""
    if not d.model.state.storage.attached and d.rng.random() < 0.9:
        return None
    return ops.Prefetch(rid=d.rng.choice(REQUESTS[:2]), key=d.key(), now=d.now)


def record_at(d: Drawing, stage: str) -> Record | None:
    """A record at this stage."""
    found = [record for record in d.model.state.storage.records.values() if record.stage == stage]
    if not found:
        return None
    return found[0] if d.first_only else d.rng.choice(found)


def query_done(d: Drawing) -> Operation | None:
    """The answer to an open query."""
    record = record_at(d, "queued")
    return answer(d, record) if record is not None else None


def answer(d: Drawing, record: Record) -> Operation:
    """Mostly what storage is believed to have; it may have lost pages, and others may have put more."""
    believed = d.model.state.storage.believed
    run = 0
    while run < len(record.hashes) and record.hashes[run] in believed:
        run += 1
    lot = d.rng.random()
    if lot < 0.1:
        return ops.QueryDone(id=record.id, raised=True)
    hits = run if lot < 0.35 else len(record.hashes) if lot < 0.8 else d.rng.randint(0, len(record.hashes))
    return ops.QueryDone(id=record.id, hits=hits)


def read_done(d: Drawing) -> Operation | None:
    """The end of a batch that is read."""
    record = record_at(d, "reading")
    return batch(d, ops.ReadDone, record) if isinstance(record, PrefetchReading) else None


def write_done(d: Drawing) -> Operation | None:
    """The end of a batch that is written."""
    record = record_at(d, "writing")
    return batch(d, ops.WriteDone, record) if isinstance(record, BackupWriting) else None


def batch(
    d: Drawing,
    kind: type[ops.ReadDone] | type[ops.WriteDone],
    record: PrefetchReading | BackupWriting,
    good: float = 0.7,
) -> Operation:
    """The end of one batch: whole mostly, else short or raised."""
    model = d.model
    size = min(model.profile.sizes.storage_batch, len(record.pages) - record.done)
    pages = size if d.rng.random() < good else d.rng.randint(0, size)
    draft = pages if model.state.draft and model.state.storage.settings.draft else 0
    if draft and d.rng.random() < 0.3:
        draft = d.rng.randint(0, pages)
    raised = pages < size and d.rng.random() < 0.4
    if not record.states or record.done + pages < len(record.pages):
        return kind(id=record.id, pages=pages, raised=raised, draft=draft)
    if kind is ops.ReadDone:
        return ops.ReadDone(id=record.id, pages=pages, draft=draft, state=d.rng.random() < good + 0.15)
    states = len(record.states) if d.rng.random() < good else d.rng.randint(0, len(record.states))
    return ops.WriteDone(id=record.id, pages=pages, draft=draft, states=states)


def progress(d: Drawing) -> Operation | None:
    """A request asks whether it may go on."""
    rid = d.pick(list(d.model.state.storage.open)) if d.rng.random() < 0.9 else d.rng.choice(REQUESTS)
    return ask(d, rid) if rid else None


FEWER_SHARE = 0.15
"""How often another rank knows of fewer pages read."""


def ask(d: Drawing, rid: str) -> Operation:
    """The request asks whether it may go on; now and then the ranks agree on a few pages only."""
    fewer = d.peers and d.model.rules.prefetch_commit == "progress" and d.rng.random() < FEWER_SHARE
    return ops.Progress(rid=rid, now=d.now, agreed=d.rng.randint(0, 2) if fewer else None)


def abort(d: Drawing) -> Operation | None:
    """A request goes."""
    rid = d.pick(list(d.model.state.storage.open)) if d.rng.random() < 0.9 else d.rng.choice(REQUESTS)
    return ops.Abort(rid=rid) if rid else None


def terminate(d: Drawing) -> Operation | None:
    """A prefetch is to stop and stays open, mostly one that storage works on; now and then the request has none."""
    storage = d.model.state.storage
    at_work = [rid for rid, name in storage.open.items() if storage.records[name].stage in ("queued", "reading")]
    rid = d.pick(at_work or list(storage.open)) if d.rng.random() < 0.9 else d.rng.choice(REQUESTS)
    return ops.Terminate(rid=rid) if rid else None


def attach_sometimes(d: Drawing) -> Operation | None:
    """An attach, seldom where a backend is attached."""
    attached = d.model.state.storage.attached
    return attach(d) if d.rng.random() < (0.1 if attached else 0.8) else None


FAILING_SHARE = 0.15
"""How often an attach fails."""

POLICY_SHARE = 0.1
"""How often an attach brings a write policy."""

FORCE_SHARE = 0.3
"""How often a detach or a reset ends what runs."""


def attach(d: Drawing) -> Operation:
    """A backend is attached with settings of its own; now and then it is another one, or it fails."""
    settings = StorageSettings(
        prefetch_policy=d.rng.choice(PREFETCH_POLICIES),
        prefetch_threshold=d.rng.choice((1, 1, 2, 3)),
        prefetch_timeout_base=1.0,
        prefetch_timeout_per_ki_token=512.0,
        prefetch_timeout_max=d.rng.choice((None, 2.0)),
        pass_prefix_keys=d.rng.random() < 0.5,
        draft=d.rng.random() < 0.8,
    )
    backend = d.rng.choice(("files", "files", "files", "other"))
    if d.one_backend and not d.model.state.storage.attached:
        backend = "files"
    may_fail = d.attach_failures and not d.model.state.storage.attached and d.rng.random() < FAILING_SHARE
    fails = d.rng.choice(d.attach_failures) if may_fail else None
    with_policy = d.may_bring_policy and d.rng.random() < POLICY_SHARE
    policy = d.rng.choice(WRITE_POLICIES) if with_policy else None
    return ops.Attach(settings=settings, backend=backend, fails=fails, write_policy=policy)


def detach(d: Drawing) -> Operation | None:
    """A detach, now and then."""
    wanted = d.rng.random() < (0.3 if d.model.state.storage.records else 0.05)
    return ops.Detach(force=is_forced(d)) if wanted else None


def time_waited(d: Drawing) -> int:
    """How long a reset has been waited for: about as long as the profile's rule says, where that says anything."""
    limit = d.model.rules.reset_waits
    if limit is None or not d.model.state.storage.records:
        return 0
    return d.rng.choice((0, max(0, limit - 1), limit, limit))


def is_forced(d: Drawing) -> bool:
    """Whether a detach or a reset ends the storage work that runs now."""
    return d.forces and bool(d.model.state.storage.records) and d.rng.random() < FORCE_SHARE


def clear_storage(d: Drawing) -> Operation | None:
    """The store is emptied, now and then."""
    return ops.ClearStorage() if d.model.state.storage.attached and d.rng.random() < 0.1 else None


def wrong_reports(d: Drawing) -> list[Operation]:
    """Some reports about nothing, about what has not begun or is over, and of more pages than there are."""
    reports: list[Operation] = [ops.ClearStorage(), ops.Poll(reads=-1)]
    for name in ("p:nothing", *d.model.state.storage.records):
        reports += [ops.QueryDone(id=name), ops.QueryDone(id=name, hits=99)]
        reports += [ops.ReadDone(id=name), ops.ReadDone(id=name, pages=99), ops.ReadDone(id=name, draft=1)]
        reports += [ops.WriteDone(id=name), ops.WriteDone(id=name, pages=99), ops.WriteDone(id=name, draft=1)]
        reports += [ops.ReadDone(id=name, state=True), ops.WriteDone(id=name, states=9)]
    return d.rng.sample(reports, 4)


def reports_of_too_much(d: Drawing) -> list[Operation]:
    """Reports about running storage work of one page more than it was asked for, and one draft page too many."""
    reports: list[Operation] = []
    for name, record in d.model.state.storage.records.items():
        if record.stage == "queued":
            reports.append(ops.QueryDone(id=name, hits=len(record.hashes) + 1))
        if isinstance(record, PrefetchReading | BackupWriting):
            kind = ops.ReadDone if isinstance(record, PrefetchReading) else ops.WriteDone
            size = min(d.model.profile.sizes.storage_batch, len(record.pages) - record.done)
            reports += [kind(id=name, pages=size + 1), kind(id=name, pages=size, draft=size + 1)]
    return reports
