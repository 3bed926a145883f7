"""Known divergences: what an entry recognises, what it makes walks leave out, and when a walk goes on after it."""

import json
import random
from pathlib import Path

import pytest
from pydantic import ValidationError

from hicache_ref.adapters.reference import ReferenceAdapter
from hicache_ref.model import Model
from hicache_ref.oracle.campaign import Budget, Campaign
from hicache_ref.oracle.known import Known, KnownError, read_known
from hicache_ref.oracle.lockstep import Lockstep
from hicache_ref.oracle.triggers import TRIGGERS
from hicache_ref.requirements import Checker
from hicache_ref.search.drawing import Drawing
from hicache_ref.search.finding import Differs, Finding
from hicache_ref.search.storing import attach
from hicache_ref.vocabulary import operations as ops
from hicache_ref.vocabulary.keys import Key
from hicache_ref.vocabulary.operations import OPERATION_TYPES, Operation
from hicache_ref.vocabulary.profile import RULES, Profile, Sizes
from hicache_ref.vocabulary.storage import StorageSettings

AUDIT = (ops.Audit(),)
LACKS = {"kind": "field", "direction": "missing", "what": "polled.writes"}
FINDING = Finding(
    "HC-CONF-02", "polled.writes is ()", "poll", "difference", differs=Differs.model_validate(LACKS), facts=("staged",)
)


def entry(**given: object) -> Known:
    """An entry for FINDING, but for what is given."""
    plain = {"id": "K", "requirement": "HC-CONF-02", "operation": "poll", "differs": [LACKS], "reason": "why",
             "profile": {}, "trace": []}  # fmt: skip
    return Known.model_validate(plain | given)


@pytest.mark.parametrize(
    ("given", "covers"),
    [
        ({"trace": [{"op": "audit"}]}, True),
        ({"trace": [{"op": "detach"}]}, False),
        ({"says": r"^polled\.writes"}, True),
        ({"says": "polled.reads"}, False),
        ({"trigger": "write_raises"}, True),
        ({"trigger": "read_raises"}, False),
        ({"trigger": "write_raises", "says": "polled.reads"}, False),
        ({"raised": "somewhere"}, False),
        ({"operation": "audit", "also_at": ["poll"], "says": "polled"}, True),
        ({"operation": "audit", "says": "polled"}, False),
        ({"requirement": "HC-CONF-07", "says": "polled"}, False),
        ({"says": "polled", "differs": [LACKS | {"direction": "not expected"}]}, False),
        ({"says": "polled", "differs": [LACKS | {"what": "polled.reads"}]}, False),
        ({"says": "polled", "differs": [LACKS | {"pool": "kv.host"}]}, False),
        ({"says": "polled", "differs": [LACKS | {"what": "polled.reads"}, LACKS]}, True),
        ({"trace": [{"op": "audit"}], "differs": []}, True),
        ({"trace": [{"op": "audit"}], "differs": [LACKS | {"direction": "instead"}]}, False),
        ({"here": "staged"}, True),
        ({"here": "demoted"}, False),
    ],
)
def test_an_entry_covers_what_it_says(given: dict[str, object], covers: bool) -> None:
    """Goal: an entry is no wider than its words. Method: one finding against entries that differ in one thing."""
    assert covers == entry(**given).covers(FINDING, AUDIT, {"write_raises", "demoted"})


def test_an_entry_follows_its_preset() -> None:
    """Goal: a rule that comes later does not make entries stale. Method: an entry that gives one rule of a preset."""
    made = entry(preset="sglang-0.5.20", profile={"rules": {"write_policy": "write_back"}})
    assert RULES["sglang-0.5.20"].model_copy(update={"write_policy": "write_back"}) == made.profile.rules


@pytest.mark.parametrize(
    "given",
    [
        {"goes_on": True},
        {"says": "("},
        {"preset": "sglang-0.4"},
        {"says": "polled", "differs": []},
        {"trigger": "write_raises", "differs": [{"kind": "crash"}]},
    ],
    ids=["goes on after a state that differs", "no regular expression", "no preset", "nothing pinned", "any crash"],
)
def test_an_entry_that_cannot_be_used_is_refused(tmp_path: Path, given: dict[str, object]) -> None:
    """Goal: the file and the line are named. Method: one wrong field."""
    with pytest.raises(ValidationError):
        entry(**given)
    line = entry().model_dump_json()
    (tmp_path / "known.jsonl").write_text(line + "\n" + json.dumps(json.loads(line) | given) + "\n")
    with pytest.raises(KnownError, match=r"known\.jsonl:2: "):
        read_known(tmp_path / "known.jsonl")


def test_two_entries_of_one_name_are_refused(tmp_path: Path) -> None:
    """Goal: what is told of an entry is told of one. Method: the same line twice."""
    (tmp_path / "known.jsonl").write_text((entry().model_dump_json() + "\n") * 2)
    with pytest.raises(KnownError, match=r"known\.jsonl:2: id is K a second time"):
        read_known(tmp_path / "known.jsonl")


SETTINGS = StorageSettings(prefetch_threshold=1, prefetch_policy="wait_complete")
ATTACHED = (ops.Attach(settings=SETTINGS),)
READING = (
    *ATTACHED,
    ops.Prefetch(rid="q", key=Key(tokens=(1, 2, 3))),
    ops.QueryDone(id="p:1.2.3", hits=3),
    ops.Poll(answers=1),
)
COMPUTED = (
    ops.TakePages(rid="r", n=2),
    ops.Forward(rid="r", key=Key(tokens=(1, 2)), start=0),
    ops.ForwardDone(rid="r"),
    ops.Insert(rid="r", key=Key(tokens=(1, 2)), start=0),
)
WRITTEN_BACK = (*COMPUTED, ops.Evict(n=2), ops.TakePages(rid="r", n=1))

MET: dict[str, tuple[tuple[Operation, ...], Operation, Operation]] = {
    "query_raises": (READING[:2], ops.QueryDone(id="p:1.2.3", raised=True), ops.QueryDone(id="p:1.2.3", hits=0)),
    "read_raises": (READING, ops.ReadDone(id="p:1.2.3", raised=True), ops.ReadDone(id="p:1.2.3", pages=2)),
    "write_raises": ((), ops.WriteDone(id="b:1", raised=True), ops.WriteDone(id="b:1")),
    "request_comes_back": (
        (*READING, ops.Abort(rid="q")),
        ops.Prefetch(rid="q", key=Key(tokens=(4,))),
        ops.Prefetch(rid="other", key=Key(tokens=(4,))),
    ),
    "read_stops_short": (READING, ops.ReadDone(id="p:1.2.3", pages=1), ops.ReadDone(id="p:1.2.3", pages=2)),
    "request_goes_early": (READING, ops.Abort(rid="q"), ops.Progress(rid="q")),
    "namespace_meets_storage": (
        ATTACHED,
        ops.Prefetch(rid="q", key=Key(tokens=(1,), extra="a")),
        ops.Prefetch(rid="q", key=Key(tokens=(1,))),
    ),
    "split_under_copy": (
        (*ATTACHED, *COMPUTED),
        ops.MatchPrefix(key=Key(tokens=(1,))),
        ops.MatchPrefix(key=Key(tokens=(1, 2))),
    ),
    "attach_to_filled_tree": (COMPUTED, ATTACHED[0], ops.Audit()),
    "detach_of_nothing": ((), ops.Detach(), ops.Audit()),
}


@pytest.mark.parametrize("name", sorted(MET))
def test_a_trigger_is_met_by_its_step_alone(name: str) -> None:
    """Goal: walks leave out no more than they must. Method: a step that is the trigger, and its like that is not."""
    before, trigger, other = MET[name]
    lockstep = lockstep_of(Profile())
    for op in before:
        lockstep.step(op)
    assert lockstep.is_trigger(trigger, name)
    assert not lockstep.is_trigger(other, name)


HIT = ops.Insert(rid="s", key=Key(tokens=(1, 2)), start=2)
SETTLED = (ops.CopyDone(ticket="h:1.2"), ops.Poll(backups=1))
LONG = Key(tokens=(1, 2, 3))
LONG_PUT = (
    ops.TakePages(rid="r", n=3),
    ops.Forward(rid="r", key=LONG, start=0),
    ops.ForwardDone(rid="r"),
    ops.Insert(rid="r", key=LONG, start=0),
    ops.CopyDone(ticket="h:1.2.3"),
    ops.Poll(backups=1),
    ops.Insert(rid="s", key=LONG, start=3),
    ops.WriteDone(id="b:1.2.3", pages=2),
)
EARLY_MET: dict[str, tuple[tuple[Operation, ...], Operation, Operation]] = {
    "hit_under_copy": ((*ATTACHED, *COMPUTED), HIT, HIT.model_copy(update={"key": Key(tokens=(7, 8))})),
    "hit_under_write": (
        (*ATTACHED, *COMPUTED, *SETTLED, HIT),
        HIT,
        HIT.model_copy(update={"key": Key(tokens=(7, 8))}),
    ),
    "write_stops_short": (
        (*ATTACHED, *LONG_PUT),
        ops.WriteDone(id="b:1.2.3"),
        ops.WriteDone(id="b:1.2.3", pages=1),
    ),
    "query_hits_less": (READING[:2], ops.QueryDone(id="p:1.2.3", hits=2), ops.QueryDone(id="p:1.2.3", hits=3)),
    "prefetch_at_limit": (
        ATTACHED,
        ops.Prefetch(rid="q", key=Key(tokens=tuple(range(16)))),
        ops.Prefetch(rid="q", key=Key(tokens=tuple(range(15)))),
    ),
    "read_of_many": (READING, ops.ReadDone(id="p:1.2.3", pages=2), ops.ReadDone(id="p:1.2.3", pages=1)),
    "reset_under_prefetch": (READING, ops.Reset(), ops.Audit()),
}


@pytest.mark.parametrize("name", sorted(EARLY_MET))
def test_a_trigger_of_0_5_1_is_met_by_its_step_alone(name: str) -> None:
    """Goal: as above, under the rules of the first release. Method: its preset, and a host with room."""
    before, trigger, other = EARLY_MET[name]
    rules = RULES["sglang-0.5.1"].model_copy(update={"write_policy": "write_through"})
    lockstep = lockstep_of(Profile(rules=rules, sizes=Sizes(device_pages=4, host_pages=24)))
    for op in before:
        lockstep.step(op)
    assert lockstep.is_trigger(trigger, name)
    assert not lockstep.is_trigger(other, name)


@pytest.mark.parametrize("put", [False, True])
def test_a_prefetch_without_room_is_told_from_one_that_evicts(put: bool) -> None:
    """Goal: as above. Method: fill the host, half of it with pages that nothing uses or that a write pins."""
    rules = RULES["sglang-0.5.1"].model_copy(update={"write_policy": "write_through"})
    lockstep = lockstep_of(Profile(rules=rules, sizes=Sizes(device_pages=2, host_pages=4)))
    key = Key(tokens=(5, 6))
    for op in (
        *ATTACHED,
        *COMPUTED,
        *SETTLED,
        *((HIT,) if put else ()),
        ops.Evict(n=2),
        ops.TakePages(rid="t", n=2),
        ops.Forward(rid="t", key=key, start=0),
        ops.ForwardDone(rid="t"),
        ops.Insert(rid="t", key=key, start=0),
    ):
        lockstep.step(op)
    assert put == lockstep.is_trigger(ops.Prefetch(rid="q", key=Key(tokens=(9,))), "prefetch_finds_no_room")


def test_triggers_under_write_back() -> None:
    """Goal: as above, for a node below a backed-up one and a load that evicts. Method: write back, load or extend."""
    lockstep = lockstep_of(Profile(rules=RULES["sglang-0.5.9"].model_copy(update={"write_policy": "write_back"})))
    for op in (*COMPUTED, ops.Evict(n=2), ops.TakePages(rid="s", n=5)):
        lockstep.step(op)
    load = ops.LoadBack(key=Key(tokens=(1, 2)))
    assert lockstep.is_trigger(load, "load_evicts")
    lockstep.step(ops.GiveBack(rid="s"))
    assert not lockstep.is_trigger(load, "load_evicts")
    below = ops.Insert(rid="r", key=Key(tokens=(1, 2, 3)), start=2)
    assert lockstep.is_trigger(below, "insert_below_backed")
    assert not lockstep.is_trigger(below.model_copy(update={"key": Key(tokens=(7, 8))}), "insert_below_backed")


def lockstep_of(profile: Profile) -> Lockstep:
    """The model beside itself."""
    adapter = ReferenceAdapter()
    return Lockstep(adapter, adapter.describe(), profile, "tree", Checker(profile))


def test_an_entry_may_depend_on_events() -> None:
    """Goal: what shows only with events, or only without, is looked for there alone. Method: one entry of each kind."""
    adapter = ReferenceAdapter()
    entries = [entry(id=str(events), events=events) for events in (None, True, False)]
    campaign = Campaign(adapter, Profile(), known=entries)
    assert ["None", str(adapter.describe().events)] == [each.id for each in campaign.known]


def test_walks_leave_triggers_out() -> None:
    """Goal: what is known to go wrong does not end every walk. Method: look for it in walks with and without."""
    seen: dict[bool, set[str]] = {}
    for known in (False, True):
        entries = [entry(id=name, trigger=name) for name in TRIGGERS] if known else []
        campaign = Campaign(ReferenceAdapter(), Profile(), known=entries)
        met: set[str] = set()
        made = campaign.lockstep
        campaign.lockstep = lambda *args, made=made, met=met, **kw: watched(made(*args, **kw), met)  # type: ignore[method-assign]
        campaign.run(Budget(walks=60))
        seen[known] = met & TRIGGERS.keys()
    assert len(seen[False]) >= 8
    assert set() == seen[True]


def watched(lockstep: Lockstep, met: set[str]) -> Lockstep:
    """The lockstep, in which all triggers are looked for, and gathered in `met`."""
    lockstep.met, lockstep.watched = met, tuple(TRIGGERS)
    return lockstep


def test_one_backend_is_asked_for_first() -> None:
    """Goal: a backend that cannot be had is not asked for. Method: draw attaches where nothing is attached."""
    drawing = Drawing(Model(Profile()), random.Random(0), frozenset(OPERATION_TYPES), one_backend=True)
    assert {"files"} == {op.backend for op in (attach(drawing) for _ in range(50)) if isinstance(op, ops.Attach)}
