"""What the process of an adapter is told when it starts."""

from pydantic import BaseModel, ConfigDict


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
    def is_pinned(self) -> bool:
        """Whether a release runs as its wheel, which is pinned by hash, has it, under sizes that a profile names."""
        return bool(self.version) and not self.files and self.preload is None and self.batch is None
