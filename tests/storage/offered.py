"""Stores as others would offer them, by `pkg.module:Class`: for SGLang, right and wrong, and files that are wrong."""

import itertools
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from hicache_ref.storage.base import Buffer
from hicache_ref.storage.files import FilesBackend, FilesOptions
from hicache_ref.storage.foreign import SglangConfig
from hicache_ref.storage.memory import MemoryBackend

HiCacheStorageConfig = SglangConfig
"""As SGLang calls it."""


class InOurTerms(MemoryBackend):
    """A store with the calls of Backend."""

    def __init__(self) -> None:
        super().__init__("in our terms")


class InPlace(FilesBackend):
    """Files are written under their own name, in two halves, with time between, and never checked."""

    def __init__(self, config: SglangConfig) -> None:
        super().__init__(config.extra_config["folder"], FilesOptions(format="sglang"))

    def write(self, keys: Sequence[str], pages: Sequence[Buffer]) -> list[bool]:
        for key, page in zip(keys, pages, strict=True):
            path = Path(self._path(key))
            if path.exists():
                continue
            half = page.nbytes // 2
            with path.open("wb") as file:
                file.write(bytes(page.nbytes))
                file.seek(0)
                file.write(page[:half])
                file.flush()
                time.sleep(0.02)
                file.write(page[half:])
        return [True] * len(keys)


class LocksForGood(FilesBackend):
    """A writer reserves its key first; a reservation whose owner is gone stays."""

    def __init__(self, config: SglangConfig) -> None:
        super().__init__(config.extra_config["folder"])

    def write(self, keys: Sequence[str], pages: Sequence[Buffer]) -> list[bool]:
        return [self._reserved(key, page) for key, page in zip(keys, pages, strict=True)]

    def _reserved(self, key: str, page: Buffer) -> bool:
        reservation = Path(self._path(key) + ".lock")
        try:
            reservation.touch(exist_ok=False)
        except FileExistsError:
            return self.exists([key]) == 1
        time.sleep(0.02)
        done = super().write([key], [page])[0]
        reservation.unlink()
        return done


class NamesByConfiguration:
    """An object with SGLang's methods, whose names say all that decides about the bytes."""

    pages: dict[str, bytes] = {}

    def __init__(self, config: SglangConfig, extra: dict[str, object]) -> None:
        ranks = (config.pp_rank, config.pp_size, config.attn_cp_rank, config.attn_cp_size)
        heads = () if config.is_mla_model else (config.tp_rank, config.tp_size)
        self.form = repr((config.model_name, config.dtype, config.layout, ranks, heads))

    def exists(self, key: str) -> bool:
        return key + self.form in self.pages

    def batch_exists(self, keys: list[str]) -> int:
        return len(list(itertools.takewhile(self.exists, keys)))

    def get(self, key: str, target_location: Buffer) -> Buffer | None:
        page = self.pages.get(key + self.form)
        if page is None or len(page) != target_location.nbytes:
            return None
        target_location[:] = page
        return target_location

    def batch_get(self, keys: list[str], targets: list[Buffer]) -> list[Buffer | None] | int | None:
        return [self.get(key, target) for key, target in zip(keys, targets, strict=True)]

    def set(self, key: str, value: Buffer) -> bool:
        self.pages.setdefault(key + self.form, bytes(value))
        return True

    def batch_set(self, keys: list[str], values: list[Buffer]) -> bool:
        return all(map(self.set, keys, values))

    def clear(self) -> None:
        self.pages.clear()


@dataclass
class StorageMetrics:
    """As SGLang has it."""

    prefetch_pgs: list[int] = field(default_factory=list)
    backup_pgs: list[int] = field(default_factory=list)
    prefetch_bandwidth: list[float] = field(default_factory=list)
    backup_bandwidth: list[float] = field(default_factory=list)


class Measures(NamesByConfiguration):
    """It measures its batches where it is asked to, and tells each once."""

    objects_a_page = 1

    def __init__(self, config: SglangConfig, extra: dict[str, object]) -> None:
        super().__init__(config, extra)
        self.is_asked = config.enable_storage_metrics
        self.metrics = StorageMetrics()

    def batch_get(self, keys: list[str], targets: list[Buffer]) -> list[Buffer | None] | int | None:
        found = super().batch_get(keys, targets)
        if self.is_asked:
            self.metrics.prefetch_pgs.append(self.objects_a_page * len(keys))
            self.metrics.prefetch_bandwidth.append(1.5)
        return found

    def batch_set(self, keys: list[str], values: list[Buffer]) -> bool:
        done = super().batch_set(keys, values)
        if self.is_asked:
            self.metrics.backup_pgs.append(self.objects_a_page * len(keys))
            self.metrics.backup_bandwidth.append(0.5)
        return done

    def get_stats(self) -> Any:
        told, self.metrics = self.metrics, StorageMetrics()
        return told


class MeasuresNothing(Measures):
    """It answers None, as SGLang's file backend does."""

    def get_stats(self) -> Any:
        return None


class MeasuresOtherCalls(Measures):
    """It measures nothing of the generic calls, for the engine makes others."""

    def __init__(self, config: SglangConfig, extra: dict[str, object]) -> None:
        super().__init__(config, extra)
        self.is_asked = False


class TellsAgain(Measures):
    """What it has told it tells again."""

    def get_stats(self) -> Any:
        return replace(self.metrics)


class MeasuresObjects(Measures):
    """K and V of a page count as two."""

    objects_a_page = 2


class LosesASpeed(Measures):
    """A list is emptied before it is told."""

    def get_stats(self) -> Any:
        told = super().get_stats()
        told.backup_bandwidth.clear()
        return told


class TellsFromTheStart(Measures):
    """It tells a batch that nobody has moved."""

    def __init__(self, config: SglangConfig, extra: dict[str, object]) -> None:
        super().__init__(config, extra)
        self.metrics = StorageMetrics(backup_pgs=[0], backup_bandwidth=[0.0])


class TellsADictionary(Measures):
    """It has a form of its own."""

    def get_stats(self) -> Any:
        return {"prefetch_pgs": []}


class TellsNoSpeed(Measures):
    """A batch that took no time has no speed."""

    def batch_set(self, keys: list[str], values: list[Buffer]) -> bool:
        done = super().batch_set(keys, values)
        self.metrics.backup_bandwidth = [float("nan") for _ in self.metrics.backup_bandwidth]
        return done


class NamesByAllItIsTold(NamesByConfiguration):
    """Its names have whether it measures in them."""

    def __init__(self, config: SglangConfig, extra: dict[str, object]) -> None:
        super().__init__(config, extra)
        self.form += f"_{config.enable_storage_metrics}"


class IgnoresTheDataType(NamesByConfiguration):
    """Its names leave the data type out, as those of SGLang's file backend do."""

    def __init__(self, config: SglangConfig, extra: dict[str, object]) -> None:
        super().__init__(replace(config, dtype=""), extra)


class KeepsReplicasApart(NamesByConfiguration):
    """Every rank stores the pages that all have."""

    def __init__(self, config: SglangConfig, extra: dict[str, object]) -> None:
        super().__init__(replace(config, is_mla_model=False), extra)


class KeepsAttentionReplicasApart(NamesByConfiguration):
    """Its names have the attention replica in them, whose bytes are those of the others."""

    def __init__(self, config: SglangConfig, extra: dict[str, object]) -> None:
        super().__init__(config, extra)
        self.form += f"_{config.dp_rank}"


class AnswersNothing(NamesByConfiguration):
    """A batch in which one page is missing is answered by None alone."""

    def batch_get(self, keys: list[str], targets: list[Buffer]) -> list[Buffer | None] | int | None:
        found = [self.get(key, target) for key, target in zip(keys, targets, strict=True)]
        return None if None in found else found


class CountsWhatItRead(NamesByConfiguration):
    """A batch is answered by the number of pages read before the first that is missing."""

    def batch_get(self, keys: list[str], targets: list[Buffer]) -> list[Buffer | None] | int | None:
        found = [self.get(key, target) for key, target in zip(keys, targets, strict=True)]
        return len(list(itertools.takewhile(lambda page: page is not None, found)))


class AnswersEachKey(NamesByConfiguration):
    """A put is answered by a truth value for each key."""

    def batch_set(self, keys: list[str], values: list[Buffer]) -> Any:
        return list(map(self.set, keys, values))


class PutAnswersTwice(NamesByConfiguration):
    """A put is answered by two truth values for each key, as by a store of K and V that does not fold them."""

    def batch_set(self, keys: list[str], values: list[Buffer]) -> Any:
        return [self.set(key, value) for key, value in zip(keys, values, strict=True) for _ in "kv"]


class PutAnswersWithANumber(NamesByConfiguration):
    """A put is answered by a status, whose 0 is success."""

    def batch_set(self, keys: list[str], values: list[Buffer]) -> Any:
        return 0 if super().batch_set(keys, values) else -1


class PutAnswersNothing(NamesByConfiguration):
    """A put forgets to say how it ended."""

    def batch_set(self, keys: list[str], values: list[Buffer]) -> Any:
        super().batch_set(keys, values)


class CountsTooFar(NamesByConfiguration):
    """A presence query counts K and V of each page."""

    def batch_exists(self, keys: list[str]) -> int:
        return 2 * super().batch_exists(keys)


class ForgetsToAnswerForLarge(NamesByConfiguration):
    """A put of more than a MiB goes another way, which gives no answer."""

    def batch_set(self, keys: list[str], values: list[Buffer]) -> Any:
        done = super().batch_set(keys, values)
        return done if values[0].nbytes < 1 << 20 else None


class ReadAnswersTwice(NamesByConfiguration):
    """A read gives two pages for each key."""

    def batch_get(self, keys: list[str], targets: list[Buffer]) -> Any:
        return [page for key, target in zip(keys, targets, strict=True) for page in [self.get(key, target)] * 2]


class ConfigurationIsOptional(NamesByConfiguration):
    """It can be made without its configuration, and then names all pages alike."""

    def __init__(self, storage_config: SglangConfig | None = None, file_path: str = "/nowhere") -> None:
        if storage_config is not None:
            super().__init__(storage_config, {})
        else:
            self.form = ""


class ConfigurationByType(NamesByConfiguration):
    """Its configuration is known by its type, and can be given by name alone."""

    def __init__(self, path: str = "/nowhere", *, place: "HiCacheStorageConfig | None" = None) -> None:
        if place is not None:
            super().__init__(place, {})
        else:
            self.form = ""


class NamedShelf(InOurTerms):
    """A store whose only option is no configuration."""

    def __init__(self, name: str = "default") -> None:
        super().__init__()
        self.name = name


class WhateverItIsGiven(NamesByConfiguration):
    """It takes what it is given, as SGLang hands it over: the configuration and the options."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)


class LastPutWins(NamesByConfiguration):
    """A put replaces what was there."""

    def set(self, key: str, value: Buffer) -> bool:
        self.pages[key + self.form] = bytes(value)
        return True


class WantsAWord(NamesByConfiguration):
    """It is made only with an option of its own."""

    def __init__(self, config: SglangConfig, extra: dict[str, object]) -> None:
        if "word" not in extra:
            raise ValueError("no word")
        super().__init__(config, extra)
