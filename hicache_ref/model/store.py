"""Storage: what is owed to it, offering, and what a poll applies of writes (upstream: write_backup_storage)."""

from dataclasses import dataclass

from hicache_ref.model.insert import InsertRules
from hicache_ref.model.pages import ModelFault
from hicache_ref.model.records import Backup, BackupEnded, BackupWriting, Prefetch, at_stage
from hicache_ref.model.state import Node, Part, Storage
from hicache_ref.vocabulary.effects import StorageWrite
from hicache_ref.vocabulary.hashing import namespace_seed
from hicache_ref.vocabulary.ids import KV_HOST, ROOT, PageHash, Pages, PoolName
from hicache_ref.vocabulary.keys import handle
from hicache_ref.vocabulary.operations import WriteDone
from hicache_ref.vocabulary.outcomes import Done, Invalid


@dataclass
class _Offer:
    """Pages to be put, with the hashes they are put under."""

    pages: list[int]
    hashes: list[PageHash]


class StoreRules(InsertRules):
    """The way down: host pages to storage."""

    @property
    def storage(self) -> Storage:
        """The storage part of the state."""
        return self.state.storage

    # -- what storage work pins -------------------------------------------------------------------------------------

    def is_pinned_by_storage(self, node: Node) -> bool:
        """Whether an open prefetch hangs on the node, or a write on the books reads its host copy (HC-PREF-03)."""
        storage = self.storage
        if not storage.records:
            return False
        if any(self._prefetch(name).anchor == node.id for name in storage.open.values()):
            return True
        refs = {(KV_HOST, page) for page in node.host or ()}
        return any(isinstance(each, Backup) and each.reads & refs for each in storage.records.values())

    def _prefetch(self, name: str) -> Prefetch:
        record = self.storage.records[name]
        if isinstance(record, Backup):
            raise ModelFault(f"{name} is no prefetch")
        return record

    def is_host_leaf(self, node: Node) -> bool:
        """Also not pinned by storage work (HC-LEAF-02)."""
        return super().is_host_leaf(node) and not self.is_pinned_by_storage(node)

    def _is_free_host_only(self, node: Node) -> bool:
        return super()._is_free_host_only(node) and not self.is_pinned_by_storage(node)

    def is_in_use(self, node: Node) -> bool:
        """Also while storage work pins it."""
        return super().is_in_use(node) or self.is_pinned_by_storage(node)

    # -- owed pages -------------------------------------------------------------------------------------------------

    def place(self, node: Node, pool_name: PoolName, pages: Pages | None) -> None:
        """Also: a page that leaves the host is owed to storage no more (HC-STORE-03)."""
        super().place(node, pool_name, pages)
        if pool_name == KV_HOST and pages is None:
            for digest in node.hashes:
                self.storage.owed.pop(digest, None)
                self.storage.reported.discard(digest)

    def acknowledged(self, part: Part) -> None:
        """Also: the pages of the part are owed to storage, and offered with all that is owed above them."""
        nodes = self.owners(KV_HOST, part.host)
        if not self.storage.attached or sum(len(node.key) for node in nodes) < len(part.host):
            return
        for node in nodes:
            if self.may_be_stored(node):
                for digest in node.hashes:
                    self.storage.owed.setdefault(digest, 0)
        self.offer(nodes[-1])

    def may_be_stored(self, node: Node) -> bool:
        """Without namespaces in the hash, what is in one must not meet what is in another (HC-HASH-03)."""
        return node.extra is None or self.rules.hash_namespace

    def offer(self, node: Node) -> None:
        """Every owed page on the path that no write on the books has is put, root first (HC-STORE-02)."""
        under_way = {h for each in self.storage.records.values() if isinstance(each, Backup) for h in each.hashes}
        offer = _Offer([], [])
        for number in reversed(self.path(node.id)):
            each = self.state.nodes[number]
            for page, digest in zip(each.host or (), each.hashes, strict=False):
                if digest in self.storage.owed and digest not in under_way:
                    offer.pages.append(page)
                    offer.hashes.append(digest)
        if not offer.pages:
            return
        if len(offer.pages) > len(node.key):
            self.facts.append("offered_with_owed_above")
        if any(self.storage.owed[digest] for digest in offer.hashes):
            self.facts.append("offered_again")
        name = handle("b", self.key_of(node), self.storage.records)
        record = BackupWriting(
            id=name,
            pages=tuple(offer.pages),
            hashes=tuple(offer.hashes),
            prefix=self.hashes_above(offer.hashes[0], node),
        )
        self.storage.records[name] = record
        self._update_leaves_of(record.pages)
        self._write_batch(record)

    def hashes_above(self, digest: PageHash, node: Node) -> tuple[PageHash, ...]:
        """The hashes of the path of `node` before `digest`, if batches are told them (HC-STORE-05)."""
        if not self.storage.settings.pass_prefix_keys:
            return ()
        path = [h for number in reversed(self.path(node.id)) for h in self.state.nodes[number].hashes]
        return tuple(path[: path.index(digest)])

    def _write_batch(self, record: BackupWriting) -> None:
        """The next batch is asked of the world."""
        start, end = record.done, record.done + self.profile.sizes.storage_batch
        prefix = record.prefix + record.hashes[:start] if self.storage.settings.pass_prefix_keys else ()
        self.effects.append(
            StorageWrite(
                id=record.id, hashes=record.hashes[start:end], pages=record.pages[start:end], prefix=prefix,
                after=self.must_follow(record.reads, frozenset()),
            )
        )  # fmt: skip

    def _update_leaves_of(self, pages: Pages) -> None:
        for node in self.owners(KV_HOST, pages):
            self.update_leaf(node.id)

    # -- the world reports, the scheduler applies -------------------------------------------------------------------

    def requires_write_done(self, op: WriteDone) -> Invalid | None:
        """The write runs, and no more is called stored than the batch has."""
        record = self.storage.records.get(op.id)
        if not isinstance(record, BackupWriting):
            return Invalid(why=f"no running write {op.id}")
        batch = min(self.profile.sizes.storage_batch, len(record.pages) - record.done)
        if not 0 <= op.draft <= op.pages <= batch:
            return Invalid(why=f"the batch of {op.id} has {batch} pages")
        return self.requires_no_draft(op.draft)

    def requires_no_draft(self, draft: int) -> Invalid | None:
        """No draft page is stored or read where there is no draft model, or its storage is off (HC-DRAFT-06)."""
        if draft and not (self.profile.draft and self.storage.settings.draft):
            return Invalid(why="draft pages are not stored here")
        return None

    def on_write_done(self, op: WriteDone) -> Done:
        """The next batch is asked for; after the last, or one that was cut short, the write has ended (HC-STORE-04)."""
        # change
        record = self.storage.records[op.id]
        assert isinstance(record, BackupWriting)
        batch = min(self.profile.sizes.storage_batch, len(record.pages) - record.done)
        done = record.done + op.pages
        self.storage.believed_draft.update(record.hashes[record.done : record.done + op.draft])
        if self.profile.draft and op.draft < op.pages:
            self.facts.append("draft_not_stored")
        if op.raised or op.pages < batch or done == len(record.pages):
            self.storage.records[op.id] = at_stage(BackupEnded, record, done=done)
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
        """The write is off the books; true if a page was offered for the last time in vain (HC-STORE-02)."""
        record = self.storage.records.pop(name)
        assert isinstance(record, BackupEnded)
        self.let_go(name, record.reads)
        self._update_leaves_of(record.pages)
        storage = self.storage
        storage.believed.update(record.hashes[: record.done])
        for digest in record.hashes[: record.done]:
            storage.owed.pop(digest, None)
            storage.reported.discard(digest)
        given_up = False
        for digest in record.hashes[record.done :]:
            if digest not in storage.owed:
                continue
            storage.owed[digest] += 1
            if storage.owed[digest] >= self.rules.storage_retries:
                del storage.owed[digest]
                storage.reported.add(digest)
                given_up = True
        if record.done < len(record.hashes):
            self.facts.append("write_cut_short")
        return given_up

    def owe_everything(self) -> None:
        """Every settled host page that storage is not believed to have is owed (HC-STORE-06)."""
        storage = self.storage
        for node in self.state.nodes.values():
            if node.id == ROOT or not self.is_settled_on_host(node) or not self.may_be_stored(node):
                continue
            for digest in node.hashes:
                if digest not in storage.believed:
                    storage.owed.setdefault(digest, 0)
                    self.facts.append("owed_at_attach")

    def storage_seed(self, extra: str | None) -> PageHash | None:
        """What starts the storage hashes of a namespace."""
        return namespace_seed(extra)
