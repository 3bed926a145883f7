"""Operations and outcomes as they stand in a trace: JSON in bytes, made without the records they stand for.

Nothing is made here that is not written: whoever writes has to keep up with a server.
"""

from collections.abc import Sequence
from typing import Any

from pydantic_core import to_json

from hicache_ref.vocabulary.observation import OBSERVATION, Observation

DONE = b',"outcome":{"kind":"done"}}'
TOOK = b',"outcome":{"kind":"took","pages":%b}}'
MATCHED = (
    b',"outcome":{"kind":"matched","device":%b,"host_hit":%d,"last_device_node":%b,"last_host_node":%b,"best":%b}}'
)


LOCK = b'{"op":"lock","receipt":"%b","key":%b,"at":"node"}'
UNLOCK = b'{"op":"unlock","receipt":"%b"}'


def key(tokens: Sequence[int], extra: str | None) -> bytes:
    """The key of these tokens."""
    listed = to_json(list(tokens))
    return b'{"tokens":%b}' % listed if extra is None else b'{"tokens":%b,"extra":%b}' % (listed, to_json(extra))


def op(name: bytes, **keys: Any) -> bytes:
    """The operation of this name. Values that are bytes are JSON already; None is left out."""
    return b'{"op":"%b"%b}' % (name, _pairs(keys))


def told(kind: bytes, **keys: Any) -> bytes:
    """What stands after an operation that has this outcome."""
    return b',"outcome":{"kind":"%b"%b}}' % (kind, _pairs(keys))


def raised(error: str) -> bytes:
    """What stands after an operation that did not end."""
    return b',"meta":{"raised":%b}}' % to_json(error)


def seen(observation: Observation) -> bytes:
    """What stands after a poll that found nothing, after which was looked."""
    return b',"outcome":{"kind":"polled"},"observed":%b}' % OBSERVATION.dump_json(observation, exclude_none=True)


def _pairs(keys: dict[str, Any]) -> bytes:
    return b"".join(
        b',"%b":%b' % (name.encode(), value if isinstance(value, bytes) else to_json(value))
        for name, value in keys.items()
        if value is not None
    )
