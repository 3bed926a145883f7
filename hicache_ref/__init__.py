"""The rules of a hierarchical KV cache, executable, and an oracle that checks implementations against them."""

from hicache_ref.model import Model
from hicache_ref.vocabulary import operations
from hicache_ref.vocabulary.profile import Profile, profile_named

__all__ = ["Model", "Profile", "operations", "profile_named"]
