"""The core's tree, read from the core: it has no call that lists its nodes, so they are found from those it named.

A split only adds nodes above known ones, so the paths of the nodes that insert and match returned reach every node.
"""

from array import array
from typing import Any, NamedTuple

from hicache_ref.adapters.sglang_rust.core import KV, STATE, Core, CoreMisbehaved
from hicache_ref.vocabulary.ids import Pages
from hicache_ref.vocabulary.keys import Key


class NodeView(NamedTuple):
    """One node as the core shows it. `parent` is an index into the list of views, -1 below the root."""

    number: int
    parent: int
    tokens: tuple[int, ...]
    extra: str | None
    device: Pages | None
    host: Pages | None
    device_state: Pages | None = None
    host_state: Pages | None = None


class _Own(NamedTuple):
    """What a node's number stands for while it starts there: a split moves the start, and nothing else ever does."""

    start: int
    tokens: tuple[int, ...]
    extra: str | None


class Nodes:
    """Reads nodes. Keeps which numbers were seen, and the tokens of each, which cannot change."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._tree: Any = core.tree
        self._seen: dict[int, None] = {}
        self._own: dict[int, _Own] = {}

    def see(self, number: int) -> None:
        """The node and those above it are known."""
        for row in self._path(number):
            self._seen[row[0]] = None

    def key_of(self, number: int) -> Key:
        """The whole key that ends at this node; the root has no tokens and no namespace."""
        tokens: tuple[int, ...] = ()
        extra = None
        for row in self._path(number):
            own = self._read_own(row[0], row[2])
            tokens, extra = self._join(tokens, own.tokens), own.extra
        return Key(tokens=tokens, extra=extra)

    def ending_at(self, key: Key) -> int | None:
        """The node whose whole key is `key`, in whole pages."""
        wanted = self._core.whole_pages(key)
        whole: list[tuple[int, ...]] = []
        for view in self.read():
            above = whole[view.parent] if view.parent >= 0 else ()
            whole.append(self._join(above, view.tokens))
            if whole[-1] == wanted and view.extra == key.extra:
                return view.number
        return None

    def read(self) -> list[NodeView]:
        """Every node but the root, parents first. Raises CoreMisbehaved if what the core shows does not fit."""
        views: list[NodeView] = []
        index = {self._core.root(): -1}
        children: dict[int, int] = {}
        for number in list(self._seen):
            if number in index:
                continue
            try:
                path = self._path(number)
            except KeyError:
                self._forget(number)
                continue
            for node, parent, start, end, resident, child_count in path:
                if node in index:
                    continue
                self._seen[node] = None
                index[node] = len(views)
                children[node] = children.get(node, 0) - child_count
                children[parent] = children.get(parent, 0) + 1
                views.append(self._view(node, index[parent], start, end, resident is not None))
        self._expect_all_children(children)
        return views

    def _expect_all_children(self, children: dict[int, int]) -> None:
        """Each node has as many children as it says, so none was missed; what the root has it does not say."""
        children.pop(self._core.root(), None)
        for number, surplus in children.items():
            if surplus:
                raise CoreMisbehaved(f"node {number} counts {-surplus} more children than are below it")

    def _path(self, number: int) -> Any:
        """Rows of node, parent, start, end, device length or None, children: from below the root to the node."""
        return self._tree.collect_path_info([number])[0]

    def _view(self, number: int, parent: int, start: int, end: int, is_resident: bool) -> NodeView:
        own = self._read_own(number, start)
        device = self._core.pages(self._tree.get_component_device_value(number, KV)) if is_resident else None
        spec = self._tree.build_storage_backup_spec(number, False)
        host = self._core.pages(spec.host_value) if spec is not None else None
        length = (end - start) // self._core.page_size
        for pages in (device, host):
            if pages is not None and len(pages) != length:
                raise CoreMisbehaved(f"node {number} has {len(pages)} pages for {length} pages of its key")
        states = self._states(number, spec) if STATE in self._core.components else (None, None)
        return NodeView(number, parent, own.tokens, own.extra, device, host, *states)

    def _states(self, number: int, spec: Any) -> tuple[Pages | None, Pages | None]:
        """The node's state slots. What is on host shows where the node's pages are there too."""
        device = self._tree.get_component_device_value(number, STATE)
        transfers = spec.comp_xfers.get(STATE) if spec is not None else None
        if not transfers and self._tree.component_has_host_value_only(number, STATE):
            raise CoreMisbehaved(f"node {number} has a state on host only and no pages there")
        return None if device is None else tuple(device.tolist()), tuple(
            transfers[0][1].tolist()
        ) if transfers else None

    def _read_own(self, number: int, start: int) -> _Own:
        known = self._own.get(number)
        if known is None or known.start != start:
            known = self._own[number] = _Own(start, self._read_tokens(number), self._read_extra(number))
        return known

    def _read_tokens(self, number: int) -> tuple[int, ...]:
        """Two calls show a node's tokens: one if it has a host copy, the other if it has a device copy."""
        spec = self._tree.build_storage_backup_spec(number, False)
        if spec is not None:
            return tuple(array("q", spec.token_ids))
        snapshot = self._tree.snapshot_buffer_backup(number, False)
        if snapshot is None:
            raise CoreMisbehaved(f"node {number} is on no tier")
        return tuple(array("q", snapshot.key_token_ids))

    def _read_extra(self, number: int) -> str | None:
        extra: str | None = self._tree.prefetch_anchor_info(number)[0]
        return extra

    def _join(self, above: tuple[int, ...], own: tuple[int, ...]) -> tuple[int, ...]:
        """Both keys in one; in bigram mode they share the token between them."""
        return above + own[1:] if above and self._core.profile.bigram else above + own

    def _forget(self, number: int) -> None:
        del self._seen[number]
        self._own.pop(number, None)
