"""What a store may measure of its work, and the labels under which an engine publishes that."""

from collections.abc import Callable
from typing import Annotated

from pydantic import Field

from hicache_ref.storage.base import Backend, Unsupported
from hicache_ref.storage.config import PLACE_LABELS, StorageConfig
from hicache_ref.vocabulary.base import Frozen

Pages = Annotated[int, Field(ge=0, strict=True)]
Speed = Annotated[float, Field(ge=0, allow_inf_nan=False)]
"""In GB a second."""


class Measured(Frozen):
    """The batches that a store has moved since it was asked last: pages, and speeds (upstream: StorageMetrics)."""

    prefetch_pgs: tuple[Pages, ...] = ()
    backup_pgs: tuple[Pages, ...] = ()
    prefetch_bandwidth: tuple[Speed, ...] = ()
    backup_bandwidth: tuple[Speed, ...] = ()


def measured(backend: Backend) -> Measured:
    """What the store has measured since it was asked last. Raises Unsupported where it offers nothing of the kind."""
    told: Callable[[], Measured] | None = getattr(backend, "measured", None)
    if told is None:
        raise Unsupported(f"{type(backend).__name__} measures nothing")
    return told()


def labels(config: StorageConfig, store: str) -> dict[str, str]:
    """The labels for all that a rank publishes of a store: no two ranks have the same (upstream's names and order).

    The operator's come last; none of them has the name of one of ours, for StorageConfig refuses that.
    """
    place = (
        store, config.tp_rank, config.dp_rank, config.pp_rank, config.pp_size, config.cp_rank, config.cp_size,
    )  # fmt: skip
    return dict(zip(PLACE_LABELS, map(str, place), strict=True)) | config.metric_labels
