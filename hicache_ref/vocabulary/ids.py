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
"""Name of a running copy: `h:` (to host) or `d:` (to device) and the key of its deepest node."""

Tier = Literal["device", "host"]
Component = Literal["kv"]

PoolName = Literal["kv.device", "kv.host"]
"""(component, tier) in one interned word, so that a look-up stays cheap."""

KV: Component = "kv"
KV_DEVICE: PoolName = "kv.device"
KV_HOST: PoolName = "kv.host"

COMPONENTS: tuple[Component, ...] = (KV,)
DEVICE: dict[Component, PoolName] = {KV: KV_DEVICE}
HOST: dict[Component, PoolName] = {KV: KV_HOST}
POOLS: tuple[PoolName, ...] = (KV_DEVICE, KV_HOST)
TIER: dict[PoolName, Tier] = {KV_DEVICE: "device", KV_HOST: "host"}

Medium = Literal["GPU", "CPU_PINNED"]
"""Where an event says that a block lives; upstream's words."""
