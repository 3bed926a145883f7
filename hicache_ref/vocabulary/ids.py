"""Names of things: pages, pools, nodes, and the handles that callers choose.

A page is the unit everywhere: one page id stands for `page_size` consecutive token slots.
"""

from typing import Literal

Page = int
"""Number of a page within its pool, from 0."""

Pages = tuple[Page, ...]
"""Page ids in the order of the key that they hold."""

PageHash = str
"""64 lowercase hex digits: the chained SHA-256 of a page (`hashing`)."""

NodeId = int
"""Number of a tree node inside one implementation; never part of an operation."""

ROOT: NodeId = 0

RequestId = str
ReceiptId = str
TicketId = str
"""Name of a running copy: `h:` (to host), `d:` (to device) or `c:` (for a request) and the key of its deepest node."""

Tier = Literal["device", "host"]
Component = Literal["kv", "state"]
"""Attention keys and values, or the recurrent state of a hybrid model (upstream: FULL, MAMBA)."""

PoolName = Literal["kv.device", "kv.host", "state.device", "state.host"]
"""(component, tier) in one interned word, so that a look-up stays cheap."""

KV: Component = "kv"
KV_DEVICE: PoolName = "kv.device"
KV_HOST: PoolName = "kv.host"

STATE: Component = "state"
STATE_DEVICE: PoolName = "state.device"
STATE_HOST: PoolName = "state.host"

DEVICE: dict[Component, PoolName] = {KV: KV_DEVICE, STATE: STATE_DEVICE}
HOST: dict[Component, PoolName] = {KV: KV_HOST, STATE: STATE_HOST}
KV_POOLS: tuple[PoolName, ...] = (KV_DEVICE, KV_HOST)
TIER: dict[PoolName, Tier] = {KV_DEVICE: "device", KV_HOST: "host", STATE_DEVICE: "device", STATE_HOST: "host"}

Medium = Literal["GPU", "CPU_PINNED"]
"""Where an event says that a block lives; upstream's words."""
