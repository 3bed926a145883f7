"""Broken states and steps of storage and of draft pages, one for each requirement of STORE, DRAFT and LIFE there."""

from hicache_ref.model import Step
from hicache_ref.model.records import BackupEnded, BackupWriting, PrefetchEnded, PrefetchReading, at_stage
from hicache_ref.vocabulary.operations import (
    Abort,
    Attach,
    ClearStorage,
    CopyDone,
    Detach,
    Forward,
    ForwardDone,
    MatchPrefix,
    Operation,
    Poll,
    Prefetch,
    QueryDone,
    ReadDone,
    RegisterDraft,
    TakePages,
    WriteBackup,
    WriteDone,
)
from hicache_ref.vocabulary.storage import StorageSettings
from tests.properties import broken_states, broken_steps
from tests.properties.breaking import DEVICE, HOST, World, key, told
from tests.properties.broken_states import backed_up

Told = tuple[World, Operation, Step]
NOBODY = "0" * 64
"""The hash of no page."""


def attach(**settings: object) -> Attach:
    """Storage is attached with a threshold of one page, and these settings."""
    return Attach(settings=StorageSettings(**{"prefetch_threshold": 1, "prefetch_policy": "wait_complete"} | settings))


def attached(**rules: object) -> World:
    """A world with storage."""
    world = World(**rules)
    world.do(attach())
    return world


def writing(text: str = "12", **rules: object) -> tuple[World, BackupWriting]:
    """A world in which the key is on both tiers and is put into storage."""
    world = attached(**rules)
    backed_up(world, text)
    (record,) = world.state.storage.records.values()
    assert isinstance(record, BackupWriting)
    return world, record


def reading(text: str = "12", **rules: object) -> tuple[World, PrefetchReading]:
    """A world in which request q waits for the key, and its first batch is read."""
    world = attached(**rules)
    name = f"p:{'.'.join(text)}"
    world.do(Prefetch(rid="q", key=key(text)), QueryDone(id=name, hits=len(text)), Poll(answers=1))
    record = world.state.storage.records[name]
    assert isinstance(record, PrefetchReading)
    return world, record


# -- states -----------------------------------------------------------------------------------------------------------


@broken_states.broken("HC-STORE-01")
def a_write_puts_pages_under_the_wrong_hashes() -> World:
    world, record = writing()
    swapped = record.model_copy(update={"hashes": record.hashes[::-1]})
    world.state.storage.records[record.id] = swapped
    return world


@broken_states.broken("HC-STORE-03")
def a_page_is_owed_that_is_not_on_host() -> World:
    world = attached()
    world.state.storage.owed[NOBODY] = 0
    return world


@broken_states.broken("HC-STORE-07")
def a_page_is_offered_once_too_often() -> World:
    world, record = writing()
    world.state.storage.owed[record.hashes[0]] = world.profile.rules.storage_retries
    return world


@broken_states.broken("HC-STORE-10")
def a_page_on_host_is_forgotten() -> World:
    world, record = writing()
    del world.state.storage.owed[record.hashes[1]]
    return world


@broken_states.broken("HC-DRAFT-01")
def a_draft_page_is_of_another_page() -> World:
    world = World(draft=True)
    first, second = world.insert("12").at[DEVICE]
    draft = world.state.pools[DEVICE].draft
    draft[first], draft[second] = draft[second], None
    return world


@broken_states.broken("HC-DRAFT-06")
def a_draft_page_is_valid_without_draft_model() -> World:
    world = World()
    node = world.insert("1")
    world.state.pools[DEVICE].draft[node.at[DEVICE][0]] = node.hashes[0]
    return world


@broken_states.broken("HC-DRAFT-07")
def a_free_page_keeps_its_draft_page() -> World:
    world = World(draft=True)
    world.state.pools[HOST].draft[0] = NOBODY
    return world


@broken_states.broken("HC-DRAFT-08")
def a_draft_page_is_stored_alone() -> World:
    world, record = writing(draft=True)
    world.state.storage.believed_draft.add(record.hashes[0])
    return world


@broken_states.broken("HC-HASH-03")
def a_page_of_a_namespace_is_owed() -> World:
    world = attached(hash_namespace=False)
    node = world.insert("1", extra="a")
    world.do(WriteBackup(key=key("1", "a")))
    world.settle()
    world.state.storage.owed[node.hashes[0]] = 0
    return world


@broken_states.broken("HC-CONF-14")
def a_time_without_end_is_in_force() -> World:
    world = attached()
    lawful = world.state.storage.settings
    broken = StorageSettings.model_construct(**dict(lawful) | {"prefetch_timeout_base": float("inf")})
    world.state.storage.settings = broken
    return world


# -- steps of storage -------------------------------------------------------------------------------------------------


@broken_steps.broken("HC-STORE-02")
def an_applied_backup_is_not_offered() -> Told:
    world = attached()
    world.insert("12")
    world.do(WriteBackup(key=key("12")), CopyDone(ticket="h:1.2"))
    world.model.offer = lambda node: None  # type: ignore[method-assign]
    return world, *world.seen(Poll(backups=1))


@broken_steps.broken("HC-STORE-04")
def a_write_ends_after_a_whole_batch() -> Told:
    world, record = writing("123")
    op, step = world.seen(WriteDone(id=record.id, pages=2))
    ended = at_stage(BackupEnded, record, done=2)
    world.state.storage.records[record.id] = ended
    world.state.storage.writes.append(record.id)
    return world, op, step._replace(effects=())


@broken_steps.broken("HC-STORE-05")
def a_second_batch_is_told_no_prefix() -> Told:
    world = World()
    world.do(attach(pass_prefix_keys=True))
    backed_up(world, "123")
    op, step = world.seen(WriteDone(id="b:1.2.3", pages=2))
    (effect,) = step.effects
    return world, op, step._replace(effects=(effect.model_copy(update={"prefix": ()}),))


@broken_steps.broken("HC-STORE-06")
def an_attach_owes_although_the_rule_says_no() -> Told:
    world = World(attach_offers=False)
    backed_up(world, "12")
    op, step = world.seen(attach())
    world.state.storage.owed[world.node("12").hashes[0]] = 0
    return world, op, step


@broken_steps.broken("HC-STORE-08")
def a_batch_is_put_in_another_order() -> Told:
    world = attached()
    world.insert("12")
    world.do(WriteBackup(key=key("12")), CopyDone(ticket="h:1.2"))
    op, step = world.seen(Poll(backups=1))
    (effect,) = step.effects
    return world, op, step._replace(effects=(effect.model_copy(update={"pages": effect.pages[::-1]}),))


@broken_steps.broken("HC-STORE-09")
def a_batch_is_read_in_another_order() -> Told:
    world = attached()
    world.do(Prefetch(rid="q", key=key("12")), QueryDone(id="p:1.2", hits=2))
    op, step = world.seen(Poll(answers=1))
    (effect,) = step.effects
    return world, op, step._replace(effects=(effect.model_copy(update={"pages": effect.pages[::-1]}),))


@broken_steps.broken("HC-STORE-11")
def a_query_that_raised_changes_the_policy() -> Told:
    world = attached()
    world.do(Prefetch(rid="q", key=key("12")))
    op, step = world.seen(QueryDone(id="p:1.2", raised=True))
    world.state.policy = "write_back"
    return world, op, step


@broken_steps.broken("HC-STORE-12")
def a_write_is_told_to_be_given_up_at_the_first_failure() -> Told:
    world, record = writing()
    world.do(WriteDone(id=record.id, pages=1, raised=True))
    op, step = world.seen(Poll(writes=1))
    return world, op, told(step, given_up=(record.id,))


@broken_steps.broken("HC-STORE-14")
def a_write_is_counted_twice() -> Told:
    world, record = writing()
    world.do(WriteDone(id=record.id, pages=2))
    op, step = world.seen(Poll(writes=1))
    return world, op, told(step, backed_up=4)


@broken_steps.broken("HC-STORE-14")
def a_batch_cut_short_is_counted_where_whole_ones_are() -> Told:
    world, record = writing("1234", backed_up_counts="batches")
    world.do(WriteDone(id=record.id, pages=2), WriteDone(id=record.id, pages=1))
    op, step = world.seen(Poll(writes=1))
    return world, op, told(step, backed_up=3)


@broken_steps.broken("HC-STORE-14")
def a_page_that_was_there_is_counted_as_prefetched() -> Told:
    world, record = reading()
    world.do(ReadDone(id=record.id, pages=2))
    op, step = world.seen(Poll(reads=1))
    return world, op, told(step, prefetched=3)


@broken_steps.broken("HC-STORE-14")
def a_revoked_prefetch_is_not_counted() -> Told:
    world = attached()
    world.do(Prefetch(rid="q", key=key("12")), QueryDone(id="p:1.2", hits=0))
    op, step = world.seen(Poll(answers=1))
    return world, op, told(step, revoked_pages=0)


@broken_steps.broken("HC-STORE-14")
def an_abort_counts_what_was_read() -> Told:
    world, _ = reading()
    op, step = world.seen(Abort(rid="q"))
    return world, op, told(step, aborted=0)


@broken_steps.broken("HC-STORE-13")
def a_closed_query_is_dropped_by_a_match() -> Told:
    world = attached()
    world.do(Prefetch(rid="q", key=key("12")), Abort(rid="q"))
    op, step = world.seen(MatchPrefix(key=key("1")))
    world.state.storage.records.clear()
    return world, op, step


# -- steps of draft pages ---------------------------------------------------------------------------------------------


@broken_steps.broken("HC-DRAFT-02")
def a_copy_leaves_the_draft_page_behind() -> Told:
    world = World(draft=True)
    world.insert("1")
    world.do(WriteBackup(key=key("1")))
    op, step = world.seen(CopyDone(ticket="h:1"))
    world.state.pools[HOST].draft[world.node("1").at[HOST][0]] = None
    return world, op, step


@broken_steps.broken("HC-DRAFT-03")
def a_pass_writes_no_draft_page() -> Told:
    world = World(draft=True)
    (page,) = world.do(TakePages(rid="r", n=1)).outcome.pages
    world.do(Forward(rid="r", key=key("1"), start=0))
    op, step = world.seen(ForwardDone(rid="r"))
    world.state.pools[DEVICE].draft[page] = None
    return world, op, step


@broken_steps.broken("HC-DRAFT-04")
def a_draft_page_that_did_not_come_is_valid() -> Told:
    world, record = reading(draft=True)
    op, step = world.seen(ReadDone(id=record.id, pages=2, draft=1))
    world.state.pools[HOST].draft[record.pages[1]] = record.hashes[1]
    return world, op, step


@broken_steps.broken("HC-DRAFT-05", "HC-PREF-06")
def a_missing_draft_page_costs_its_page() -> Told:
    world, record = reading(draft=True)
    op, step = world.seen(ReadDone(id=record.id, pages=2, draft=1))
    world.state.storage.records[record.id] = at_stage(PrefetchEnded, record, done=1, known=0)
    world.state.storage.reads[-1] = (record.id, 1)
    return world, op, step


@broken_steps.broken("HC-DRAFT-09")
def a_draft_page_that_was_not_put_is_believed_stored() -> Told:
    world, record = writing(draft=True)
    op, step = world.seen(WriteDone(id=record.id, pages=2, draft=1))
    world.state.storage.believed_draft.add(record.hashes[1])
    return world, op, step


@broken_steps.broken("HC-DRAFT-10", "HC-PREF-17")
def a_draft_page_comes_from_a_backend_that_takes_none() -> Told:
    world, record = reading(draft=True)
    world.do(attach(draft=False))
    world.model.requires_no_draft = lambda draft: None  # type: ignore[method-assign]
    return world, *world.seen(ReadDone(id=record.id, pages=2, draft=1))


@broken_steps.broken("HC-DRAFT-11")
def a_draft_model_comes_and_is_not_there() -> Told:
    world = attached()
    backed_up(world, "1")
    world.do(WriteDone(id="b:1", pages=1), Poll(writes=1))
    op, step = world.seen(RegisterDraft())
    world.state.draft = False
    return world, op, step


@broken_steps.broken("HC-DRAFT-11")
def pages_of_before_get_draft_pages() -> Told:
    world = attached()
    backed_up(world, "1")
    op, step = world.seen(RegisterDraft())
    pool = world.state.pools[HOST]
    pool.draft = pool.stamp[:]
    return world, op, step


# -- steps that attach, detach and clear ------------------------------------------------------------------------------


@broken_steps.broken("HC-LIFE-06")
def a_refused_detach_does_not_say_what_runs() -> Told:
    world, _ = reading()
    op, step = world.seen(Detach())
    return world, op, told(step, wait_for=())


@broken_steps.broken("HC-LIFE-07")
def an_attach_forgets_the_settings() -> Told:
    world = attached()
    settings = world.state.storage.settings
    op, step = world.seen(attach(prefetch_threshold=7))
    world.state.storage.settings = settings
    return world, op, step


@broken_steps.broken("HC-LIFE-07")
def an_attach_forgets_its_write_policy() -> Told:
    world = World()
    policy = world.state.policy
    op, step = world.seen(attach().model_copy(update={"write_policy": "write_back"}))
    world.state.policy = policy
    return world, op, step


@broken_steps.broken("HC-LIFE-08")
def a_detach_leaves_what_was_believed() -> Told:
    world = attached()
    op, step = world.seen(Detach())
    world.state.storage.believed.add(NOBODY)
    return world, op, step


@broken_steps.broken("HC-LIFE-09")
def a_clear_leaves_what_was_believed() -> Told:
    world = attached()
    op, step = world.seen(ClearStorage())
    world.state.storage.believed.add(NOBODY)
    return world, op, step
