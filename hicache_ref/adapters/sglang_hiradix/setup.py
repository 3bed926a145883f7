"""What the process of an adapter is told when it starts."""

from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path

from pydantic import BaseModel, ConfigDict


def given(files: Mapping[str, str]) -> tuple[str, ...]:
    """Each name and the first digits of the SHA-256 of its file, which says more than where that lies."""
    return tuple(f"{name} sha256:{sha256(Path(file).read_bytes()).hexdigest()[:16]}" for name, file in files.items())


class Setup(BaseModel):
    """What the process is to hold."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    root: str
    """The folder that `sglang` is in."""

    version: str
    """The release, empty where a source tree is to say what it is like."""

    storage: bool = True
    events: bool | None = None
    """None: where they name tiers."""

    files: dict[str, str] = {}
    """Modules -> the files that take their places."""

    preload: str | None = None
    batch: int | None = None

    @property
    def changed(self) -> tuple[str, ...]:
        """Which files of the user are in it, by what they hold."""
        named = {module.rpartition(".")[2]: file for module, file in self.files.items()}
        return given(named | ({"preload": self.preload} if self.preload is not None else {}))

    @property
    def is_pinned(self) -> bool:
        """Whether a release runs as its wheel, which is pinned by hash, has it, under sizes that a profile names."""
        return bool(self.version) and not self.files and self.preload is None and self.batch is None
