"""Stores of tensors that load torch late: in a method, in a function within one, or for a type checker alone."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tests.storage.offered import NamesByConfiguration

if TYPE_CHECKING:
    import torch


class WorksWithoutTorch(NamesByConfiguration):
    """It takes what it is given."""


class NamesTensorsAlone(NamesByConfiguration):
    """It works with what its methods say that they take, and never imports it."""

    def set(self, key: str, value: torch.Tensor) -> bool:  # type: ignore[override]
        self.pages.setdefault(key + self.form, bytes(value.tolist()))
        return True

    def get(self, key: str, target_location: torch.Tensor) -> Any:  # type: ignore[override]
        page = self.pages.get(key + self.form)
        if page is None or target_location.numel() != len(page):
            return None
        for number, byte in enumerate(page):
            target_location[number] = byte
        return target_location


class ImportsInAMethod(NamesByConfiguration):
    """A method imports torch when it is called first."""

    def get(self, key: str, target_location: Any) -> Any:
        import torch

        page = self.pages.get(key + self.form)
        return None if page is None else target_location.copy_(torch.frombuffer(bytearray(page), dtype=torch.uint8))

    def set(self, key: str, value: Any) -> bool:
        self.pages.setdefault(key + self.form, bytes(value.tolist()))
        return True


class ImportsInAnInnerFunction(ImportsInAMethod):
    """A function within a method imports something of torch."""

    def get(self, key: str, target_location: Any) -> Any:
        def copied(page: bytes) -> Any:
            from torch import tensor, uint8

            return target_location.copy_(tensor(list(page), dtype=uint8))

        page = self.pages.get(key + self.form)
        return None if page is None else copied(page)
