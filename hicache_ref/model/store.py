"""Storage: what is owed to it, offering, and what a poll applies of writes (upstream: write_backup_storage)."""

from hicache_ref.model.components import COMPONENT
from hicache_ref.model.hybrid import HybridRules
from hicache_ref.model.pages import ModelFault
from hicache_ref.model.records import Backup, BackupEnded, BackupWriting, Prefetch, Record, at_stage
from hicache_ref.model.state import Node, Part, Storage
from hicache_ref.vocabulary.effects import StorageWrite
from hicache_ref.vocabulary.hashing import namespace_seed
from hicache_ref.vocabulary.ids import HOST, KV, KV_HOST, ROOT, STATE, STATE_HOST, Component, PageHash, Pages, PoolName
from hicache_ref.vocabulary.keys import handle
from hicache_ref.vocabulary.operations import WriteDone
from hicache_ref.vocabulary.outcomes import Done, Invalid


class StoreRules(HybridRules):
    """The way down: host pages to storage."""

    @property
    def storage(self) -> Storage:
        """The storage part of the state."""
        return self.state.storage

    # -- what storage work pins -------------------------------------------------------------------------------------

    def is_pinned_by_storage(self, node: Node) -> bool:
        """Whether an open prefetch hangs on the node, or a write on the books reads its host copy (HC-PREF-03)."""
        return bool(self.storage.records) and bool(self.pinned_by(node))

    def pinned_by(self, node: Node) -> set[str]:
        """Also the open prefetches that hang on the node, and the writes on the books that read its host copy."""
        storage = self.storage
        refs = {(name, page) for name in (KV_HOST, STATE_HOST) for page in node.at.get(name, ())}
        hanging = {name for name in storage.open.values() if self._prefetch(name).anchor == node.id}
        reading = {name for name, each in storage.records.items() if isinstance(each, Backup) and each.reads & refs}
        return super().pinned_by(node) | hanging | reading

    def _prefetch(self, name: str) -> Prefetch:
        record = self.storage.records[name]
        if isinstance(record, Backup):
            raise ModelFault(f"{name} is no prefetch")
        return record

    def is_host_leaf(self, node: Node) -> bool:
        """Also not pinned by storage work (HC-LEAF-02)."""
        return super().is_host_leaf(node) and not self.is_pinned_by_storage(node)

    def may_lose_state(self, node: Node, pool_name: PoolName) -> bool:
        """On host also not while an open prefetch hangs on the node: that will go on from it (HC-STATE-33)."""
        if not super().may_lose_state(node, pool_name):
            return False
        hanging = pool_name == STATE_HOST and bool(self.storage.open)
        return not (hanging and any(self._prefetch(each).anchor == node.id for each in self.storage.open.values()))

    def is_in_use(self, node: Node) -> bool:
        """Also while storage work pins it."""
        return super().is_in_use(node) or self.is_pinned_by_storage(node)

    # -- owed pages -------------------------------------------------------------------------------------------------

    def place(self, node: Node, pool_name: PoolName, pages: Pages | None) -> None:
        """Also: a page or state that leaves the host is owed to storage no more (HC-STORE-03)."""
        super().place(node, pool_name, pages)
        if pool_name == STATE_HOST and pages is None:
            self.storage.owed_states.pop(node.hashes[-1], None)
            self.storage.reported_states.discard(node.hashes[-1])
        if pool_name == KV_HOST and pages is None:
            for digest in node.hashes:
                self.storage.owed.pop(digest, None)
                self.storage.reported.discard(digest)

    def acknowledged(self, parts: tuple[Part, ...]) -> None:
        """Also: what the parts hold is owed to storage, and offered with all that is owed above it."""
        owners = [(part.component, node) for part in parts for node in self.owners(HOST[part.component], part.host)]
        if not self.storage.attached or not owners or (self.evicting and not self.rules.write_back_offers):
            return
        if self.rules.storage_put == "hit":
            return
        for component, node in owners:
            if self.may_be_stored(node):
                self._owe(node, component)
        self.offer(owners[-1][1])

    def _owe(self, node: Node, component: Component) -> None:
        """What the node holds of the component on host is owed to storage."""
        owed = self.storage.owed if component == KV else self.storage.owed_states
        for digest in COMPONENT[component].stamps(node):
            owed.setdefault(digest, 0)

    def may_be_stored(self, node: Node) -> bool:
        """Without namespaces in the hash, what is in one must not meet what is in another (HC-HASH-03)."""
        return node.extra is None or self.rules.hash_namespace

    def offer(self, node: Node) -> None:
        """Every owed page on the path that no write on the books has is put, root first (HC-STORE-02).

        One write has pages that follow each other: where some between are not owed, there are several. The owed
        states of nodes that end in it go with it, one that came late alone.
        """
        under_way, ends_under_way = self._under_way(), self._ends_under_way()
        above: list[PageHash] = []
        run: list[int] = []
        states: dict[PageHash, int] = {}
        offered = 0
        for number in reversed(self.path(node.id)):
            each = self.state.nodes[number]
            for at, digest in enumerate(each.hashes):
                if each.host is not None and digest in self.storage.owed and digest not in under_way:
                    run.append(each.host[at])
                    offered += 1
                    if self.storage.owed[digest]:
                        self.facts.append("offered_again")
                elif run:
                    self._put(node, run, above, states)
                    run, states = [], {}
                above.append(digest)
            end = each.hashes[-1] if each.hashes else ""
            if end in self.storage.owed_states and end not in ends_under_way:
                states[end] = each.at[STATE_HOST][0]
                if not run:
                    self.facts.append("state_put_alone")
                    self._put(each, run, above, states)
                    states = {}
        if run:
            self._put(node, run, above, states)
        if offered > len(node.key):
            self.facts.append("offered_with_owed_above")

    def count_hit(self, node: Node) -> bool:
        """Also: by the rule `storage_put` = `hit` a node that is on host is put, unless a write of it ended whole."""
        due = super().count_hit(node)
        if self.rules.storage_put == "hit" and self.state.policy != "write_back" and self._is_due_to_be_put(node):
            self._put_node(node)
        return due

    def _is_due_to_be_put(self, node: Node) -> bool:
        wanted = self.rules.hits_before_put(self.state.policy)
        hit = self.storage.attached and not node.is_put and node.hits >= wanted
        return hit and self.may_be_stored(node) and self.is_settled_on_host(node) and not self.is_under_way(node)

    def is_under_way(self, node: Node) -> bool:
        """Whether a write on the books has a page of the node."""
        return not self._under_way().isdisjoint(node.hashes)

    def _under_way(self) -> set[PageHash]:
        return {h for each in self.storage.records.values() if isinstance(each, Backup) for h in each.hashes}

    def _ends_under_way(self) -> set[PageHash]:
        return {h for each in self.storage.records.values() if isinstance(each, Backup) for h in each.ends}

    def _put_node(self, node: Node) -> None:
        """A write of all pages of the node is on the books; those that storage is not believed to have are owed."""
        for digest in node.hashes:
            self.storage.reported.discard(digest)
            if digest not in self.storage.believed:
                self.storage.owed.setdefault(digest, 0)
        path = [h for number in reversed(self.path(node.id)) for h in self.state.nodes[number].hashes]
        self._put(node, list(node.host or ()), path, {})

    def _put(self, node: Node, pages: list[int], path: list[PageHash], states: dict[PageHash, int]) -> None:
        """A write of these pages, which hold the end of `path`, and of these states is on the books.

        It is named after the node.
        """
        start = len(path) - len(pages)
        name = handle("b", self.key_of(node), self.storage.records)
        record = BackupWriting(
            id=name, pages=tuple(pages), hashes=tuple(path[start:]), prefix=tuple(path[:start]),
            states=tuple(states.values()), ends=tuple(states),
        )  # fmt: skip
        self.storage.records[name] = record
        self._update_leaves_of(record)
        self._write_batch(record)

    def _write_batch(self, record: BackupWriting) -> None:
        """The next batch is asked of the world."""
        start, end = record.done, record.done + self.profile.sizes.storage_batch
        last = end >= len(record.pages)
        self.effects.append(
            StorageWrite(
                id=record.id, hashes=record.hashes[start:end], pages=record.pages[start:end],
                states=record.states if last else (), ends=record.ends if last else (),
                prefix=self.told_prefix(record, start), after=self.must_follow(record.reads, frozenset()),
            )
        )  # fmt: skip

    def told_prefix(self, record: Record, start: int) -> tuple[PageHash, ...]:
        """The hashes from the start of the sequence up to page `start` of the record, if asked for (HC-STORE-05)."""
        return record.prefix + record.hashes[:start] if self.storage.settings.pass_prefix_keys else ()

    def _update_leaves_of(self, record: Backup) -> list[Node]:
        """The nodes that own what the write reads are leaves or not; returns them."""
        nodes = self.owners(KV_HOST, record.pages) + self.owners(STATE_HOST, record.states)
        for node in nodes:
            self.update_leaf(node.id)
        return nodes

    # -- the world reports, the scheduler applies -------------------------------------------------------------------

    def requires_write_done(self, op: WriteDone) -> Invalid | None:
        """The write runs, and no more is called stored than the batch has."""
        record = self.storage.records.get(op.id)
        if not isinstance(record, BackupWriting):
            return Invalid(why=f"no running write {op.id}")
        batch = min(self.profile.sizes.storage_batch, len(record.pages) - record.done)
        if not 0 <= op.draft <= op.pages <= batch:
            return Invalid(why=f"the batch of {op.id} has {batch} pages")
        if op.states and (record.done + op.pages < len(record.pages) or not 0 < op.states <= len(record.states)):
            return Invalid(why=f"{op.id} puts {len(record.states)} states, behind its last page")
        return self.requires_no_draft(op.draft)

    def requires_no_draft(self, draft: int) -> Invalid | None:
        """No draft page is stored or read where there is no draft model, or its storage is off (HC-DRAFT-10)."""
        if draft and not (self.state.draft and self.storage.settings.draft):
            return Invalid(why="draft pages are not stored here")
        return None

    def on_write_done(self, op: WriteDone) -> Done:
        """The next batch is asked for; after the last, or one that was cut short, the write has ended (HC-STORE-04)."""
        # change
        record = self.storage.records[op.id]
        assert isinstance(record, BackupWriting)
        batch = min(self.profile.sizes.storage_batch, len(record.pages) - record.done)
        done = record.done + op.pages
        if not record.cleared:
            self.storage.believed_draft.update(record.hashes[record.done : record.done + op.draft])
        if self.state.draft and op.draft < op.pages:
            self.facts.append("draft_not_stored")
        if op.raised or op.pages < batch or done == len(record.pages):
            self.storage.records[op.id] = at_stage(BackupEnded, record, done=done, states_done=op.states)
            self.storage.writes.append(op.id)
        else:
            record = record.model_copy(update={"done": done})
            self.storage.records[op.id] = record
            self._write_batch(record)
        # tell
        if op.raised:
            self.facts.append("write_raised")
        return Done()

    def apply_write(self, name: str) -> bool:
        """The write is off the books; true if a page was offered for the last time in vain (HC-STORE-12)."""
        record = self.storage.records.pop(name)
        assert isinstance(record, BackupEnded)
        self.let_go(name, record.reads)
        self.count("backed_up", self._counts(record))
        for node in self._update_leaves_of(record):
            self.prune(node.id)
        if record.done < len(record.hashes):
            self.facts.append("write_cut_short")
        elif self.rules.storage_put == "hit":
            for each in self.owners(KV_HOST, record.pages[-1:]):
                each.is_put = True
        storage = self.storage
        if record.cleared:
            if not self.rules.attach_offers:
                # It was offered, and is no more owed than what else is on host.
                for digest in record.hashes:
                    storage.owed.pop(digest, None)
                for digest in record.ends:
                    storage.owed_states.pop(digest, None)
            return False
        storage.believed.update(record.hashes[: record.done])
        for digest in record.hashes[: record.done]:
            storage.owed.pop(digest, None)
            storage.reported.discard(digest)
        given_up = self._offered_in_vain(record.hashes[record.done :], storage.owed, storage.reported)
        storage.believed_states.update(record.ends[: record.states_done])
        for digest in record.ends[: record.states_done]:
            storage.owed_states.pop(digest, None)
            storage.reported_states.discard(digest)
        rest = record.ends[record.states_done :]
        if rest:
            self.facts.append("state_not_put")
        given_up |= self._offered_in_vain(rest, storage.owed_states, storage.reported_states)
        if given_up:
            self.facts.append("page_reported")
        return given_up

    def _counts(self, record: BackupEnded) -> int:
        """The pages with which the write raises the counter (HC-STORE-14)."""
        if self.rules.backed_up_counts == "pages" or record.done == len(record.hashes):
            return record.done
        return record.done - record.done % self.profile.sizes.storage_batch

    def _offered_in_vain(
        self, hashes: tuple[PageHash, ...], owed: dict[PageHash, int], reported: set[PageHash]
    ) -> bool:
        """Each was offered once more; true if one was for the last time, and is reported."""
        given_up = False
        for digest in hashes:
            if digest not in owed:
                continue
            owed[digest] += 1
            if owed[digest] >= self.rules.storage_retries:
                del owed[digest]
                reported.add(digest)
                given_up = True
        return given_up

    def owe_everything(self) -> None:
        """Every settled host page that storage is not believed to have is owed, and none reported (HC-STORE-06)."""
        storage = self.storage
        storage.reported.clear()
        storage.reported_states.clear()
        for node in self.state.nodes.values():
            if node.id == ROOT or not self.is_settled_on_host(node) or not self.may_be_stored(node):
                continue
            for digest in node.hashes:
                if digest not in storage.believed:
                    storage.owed.setdefault(digest, 0)
                    self.facts.append("owed_at_attach")
            slots = node.at.get(STATE_HOST)
            arrives = slots is not None and self.is_being_written(STATE_HOST, slots)
            if slots is not None and not arrives and node.hashes[-1] not in storage.believed_states:
                self._owe(node, STATE)

    def storage_seed(self, extra: str | None) -> PageHash | None:
        """What starts the storage hashes of a namespace."""
        return namespace_seed(extra)
