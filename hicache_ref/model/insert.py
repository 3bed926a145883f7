"""Requests and insert: device pages are taken, written by a forward pass, and become the tree's.

Upstream: alloc, cache_unfinished_req, cache_finished_req, insert.
"""

from dataclasses import replace

from hicache_ref.model.load import LoadRules
from hicache_ref.model.state import Node, Pass, Request
from hicache_ref.vocabulary.effects import RunForward
from hicache_ref.vocabulary.hashing import chain, namespace_seed
from hicache_ref.vocabulary.ids import KV_DEVICE, ROOT, STATE_DEVICE, NodeId, PageHash, Pages
from hicache_ref.vocabulary.keys import Key, PageKeys
from hicache_ref.vocabulary.operations import Forward, ForwardDone, GiveBack, Insert, TakePages
from hicache_ref.vocabulary.outcomes import Done, Inserted, Invalid, Refused, Took


class InsertRules(LoadRules):
    """How pages get into the tree."""

    def requires_take_pages(self, op: TakePages) -> Invalid | None:
        """The request holds nothing and no pass of its name runs; a positive number is asked for."""
        if op.n <= 0:
            return Invalid(why="n must be positive")
        if op.rid in self.state.requests or op.rid in self.state.passes:
            return Invalid(why=f"request {op.rid} is in use")
        return Invalid(why="there is no state to go on from") if op.prefix is not None else None

    def on_take_pages(self, op: TakePages) -> Took | Refused:
        """The request holds `n` device pages that hold nothing yet."""
        # change
        refused = self.device_room(op.n)
        if refused is not None:
            return refused
        pages = self.take(KV_DEVICE, op.n, ("request", op.rid))
        self.state.requests[op.rid] = Request(id=op.rid, pages=pages)
        # tell
        return Took(pages=pages)

    def requires_give_back(self, op: GiveBack) -> Invalid | None:
        """The request holds pages."""
        return None if op.rid in self.state.requests else Invalid(why=f"no request {op.rid}")

    def on_give_back(self, op: GiveBack) -> Done:
        """The request holds nothing; pages that its pass still touches are free when that ends."""
        # change
        request = self.state.requests.pop(op.rid)
        self.release(KV_DEVICE, request.pages)
        if request.state:
            self.release(STATE_DEVICE, request.state)
        # tell
        return Done()

    # -- forward passes ---------------------------------------------------------------------------------------------

    def requires_forward(self, op: Forward) -> Invalid | None:
        """The request's pages are unwritten, `key[start:]` fits them, and `key[:start]` is resident."""
        request = self.state.requests.get(op.rid)
        if request is None or op.rid in self.state.passes:
            return Invalid(why=f"no idle request {op.rid}")
        if request.key is not None:
            return Invalid(why=f"the pages of request {op.rid} are written already")
        return self._requires_fit(request, op.key, op.start)

    def _requires_fit(self, request: Request, key: Key, start: int) -> Invalid | None:
        """The key's pages from `start` on are as many as the request holds, and those before are resident."""
        pages = self.pages(key)
        if start < 0 or start + len(request.pages) != len(pages):
            return Invalid(why=f"request {request.id} holds {len(request.pages)} pages, {len(pages) - start} are named")
        if len(self.resident_pages(pages[:start], key.extra)) < start:
            return Invalid(why=f"the first {start} pages of {key} are not resident")
        return None

    def on_forward(self, op: Forward) -> Done:
        """A pass runs that reads the resident prefix and writes the request's own pages."""
        # change
        request = self.state.requests[op.rid]
        pages = self.pages(op.key)
        prefix = self.resident_pages(pages[: op.start], op.key.extra)
        changes = frozenset((STATE_DEVICE, slot) for slot in request.state)
        reads = frozenset((KV_DEVICE, page) for page in prefix)
        writes = frozenset((KV_DEVICE, page) for page in request.pages) | changes
        after = self.must_follow(reads, writes)
        self.state.passes[op.rid] = Pass(
            id=op.rid, reads=reads, writes=writes, pages=request.pages, state=request.state,
            hashes=self.hashes(pages, op.key.extra)[op.start :], doomed=self._is_unreadable(reads),
        )  # fmt: skip
        self.state.requests[op.rid] = replace(request, key=op.key, start=op.start)
        # tell
        self.effects.append(
            RunForward(id=f"f:{op.rid}", reads=prefix, writes=request.pages, state=request.state, after=after)
        )
        if after:
            self.facts.append("forward_waits_for_load")
        return Done()

    def hashes(self, pages: PageKeys, extra: str | None) -> tuple[PageHash, ...]:
        """The hash of each of these pages, which begin a key in this namespace."""
        return chain(pages, namespace_seed(extra), self.profile.bigram)

    def requires_forward_done(self, op: ForwardDone) -> Invalid | None:
        """The pass runs, and what it reads is written or will never be."""
        running = self.state.passes.get(op.rid)
        if running is None:
            return Invalid(why=f"no pass of request {op.rid} runs")
        ahead = () if running.doomed else self.waits_for(running)
        return Invalid(why=f"the pass of {op.rid} comes after {', '.join(ahead)}") if ahead else None

    def on_forward_done(self, op: ForwardDone) -> Done:
        """The pages hold their part of the key; those of a doomed pass hold nothing, for ever (HC-XFER-05)."""
        # change
        ended = self.state.passes.pop(op.rid)
        if not ended.doomed:
            pool = self.state.pools[KV_DEVICE]
            for page, digest in zip(ended.pages, ended.hashes, strict=True):
                pool.stamp[page] = digest
                pool.draft[page] = digest if self.state.draft else None
        for slot in ended.state:
            self.state.pools[STATE_DEVICE].stamp[slot] = None if ended.doomed else ended.hashes[-1]
        self.let_go(f"f:{op.rid}", ended.reads | ended.writes)
        # tell
        return Done()

    # -- insert -----------------------------------------------------------------------------------------------------

    def requires_insert(self, op: Insert) -> Invalid | None:
        """The request's own pages hold `key[start:]`, or its pass is about to write that, and the rest is resident.

        A request that holds nothing may insert what is all resident: it only uses it once more.
        """
        request = self.state.requests.get(op.rid)
        if request is None and op.start and op.start == len(self.pages(op.key)):
            request = Request(id=op.rid, pages=(), key=op.key)
        if request is None or request.key is None:
            return Invalid(why=f"no request {op.rid} whose pages are written")
        if not 0 <= op.inserted <= op.start:
            return Invalid(why=f"inserted is {op.inserted}, expected 0 to start, which is {op.start}")
        misfit = self._requires_fit(request, op.key, op.start)
        if misfit is not None:
            return misfit
        if self._content(request) != self.hashes(self.pages(op.key), op.key.extra)[op.start :]:
            return Invalid(why=f"the pages of request {op.rid} do not hold this part of {op.key}")
        return None

    def _content(self, request: Request) -> tuple[PageHash | None, ...]:
        """What the request's pages hold, or will when its pass ends well."""
        running = self.state.passes.get(request.id)
        if running is not None and not running.doomed:
            return running.hashes
        return tuple(self.state.pools[KV_DEVICE].stamp[page] for page in request.pages)

    def on_insert(self, op: Insert) -> Inserted:
        """Every page of the key is resident; the request's duplicates of what already was are given back.

        Nodes of the path count a hit, which may submit backups (HC-INSERT-01, HC-BACKUP-05).
        """
        # change
        request = self.state.requests.pop(op.rid, None)
        pages = self.pages(op.key)
        walk = _InsertWalk(self, op, request.pages if request is not None else ())
        node = walk.through(pages)
        if walk.at < len(pages):
            node = self._attach_rest(node, pages, walk)
        elif self.rules.late_states == "insert":
            self._back_up(walk)
        self.release(KV_DEVICE, tuple(walk.duplicates))
        existed = request is not None and self.attach_state(node, request)
        self._back_up(walk)
        self.back_up_late_state(node)
        # tell
        return Inserted(prefix=walk.prefix, given_back=tuple(walk.duplicates), state_existed=existed)

    def _back_up(self, walk: "_InsertWalk") -> None:
        """What is due by the hits of the insert was submitted, as far as there is room."""
        due, walk.due = walk.due, []
        for number in due:
            node = self.state.nodes.get(number)
            if node is not None and self.is_due(node):
                self.backup(node)

    def back_up_late_state(self, node: Node) -> None:
        """By the rule late_states = insert the state that the insert brought follows its KV to host."""

    def attach_state(self, node: Node, request: Request) -> bool:
        """The node has the request's state, if there is one; true if it had one already, which stays."""
        return False

    def _attach_rest(self, above: Node, pages: PageKeys, walk: "_InsertWalk") -> Node:
        leaf = self.attach(above, pages[walk.at :], walk.op.key.extra, walk.op.priority)
        self.place(leaf, KV_DEVICE, walk.own_pages(walk.at, len(pages)))
        walk.count_hit(leaf, len(pages))
        return leaf


class _InsertWalk:
    """The way of one insert down the tree: what it met, revived and found twice."""

    def __init__(self, model: InsertRules, op: Insert, own: Pages) -> None:
        self.model = model
        self.op = op
        self.own = own
        self.at = 0
        self.prefix = 0
        self.duplicates: list[int] = []
        self.due: list[NodeId] = []

    def own_pages(self, start: int, end: int) -> Pages:
        """The request's pages for the key's pages `start` to `end`; those before `op.start` it does not hold."""
        return self.own[max(start - self.op.start, 0) : max(end - self.op.start, 0)]

    def through(self, pages: PageKeys) -> Node:
        """Every node that the key covers was met, the last one split at the key's end; returns the deepest."""
        model, extra = self.model, self.op.key.extra
        goal = model.look(pages, extra)
        path = [model.state.nodes[number] for number in reversed(model.path(goal.node.id))]
        node = model.state.nodes[ROOT]
        for each in path:
            if model.rules.split_raises_priority == "both":
                each.priority = max(each.priority, self.op.priority)
            node = model.use(each, min(len(each.key), goal.length - self.at))
            self._meet(node)
        return node

    def _meet(self, node: Node) -> None:
        """The node's pages are resident: its own, with the request's as duplicates, or the request's (revival)."""
        model = self.model
        end = self.at + len(node.key)
        node.priority = max(node.priority, self.op.priority)
        mine = self.own_pages(self.at, end)
        if node.device is None:
            model.place(node, KV_DEVICE, mine)
            model.facts.append("revived")
            if model.rules.insert_length_counts_revived:
                self.prefix += len(node.key)
            if model.rules.revive_counts_hit:
                self.count_hit(node, end)
        else:
            self.duplicates.extend(mine)
            self.prefix += len(node.key)
            self.count_hit(node, end)
        self.at = end

    def count_hit(self, node: Node, end: int) -> None:
        """A hit, unless this request was counted on the node before, or the insert is a chunk (HC-BACKUP-05)."""
        rules = self.model.rules
        if self.op.chunked and not rules.chunked_counts_hit:
            return
        if end <= self.op.inserted and not rules.hit_counts_again_for_same_request:
            return
        if self.model.count_hit(node):
            self.due.append(node.id)
