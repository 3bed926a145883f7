"""The common base of every record that flows: frozen, closed, comparable."""

from pydantic import BaseModel, ConfigDict


class Frozen(BaseModel):
    """A record that cannot change and refuses keys it does not know."""

    model_config = ConfigDict(frozen=True, extra="forbid")
