"""Faults of the hash chain: what a page's hash depends on."""

from hicache_ref.faults.catalogue import plant
from hicache_ref.model import Model
from hicache_ref.model.state import Node
from hicache_ref.vocabulary.hashing import chain, namespace_seed
from hicache_ref.vocabulary.ids import ROOT
from hicache_ref.vocabulary.keys import PageKeys


@plant("hash-ignores-namespace", "K9", "D9", "SG-38577", expected="HC-HASH-01")
class HashIgnoresNamespace(Model):
    """The hash of a page does not depend on its namespace, so that one adapter is served another's pages.

    SGLang's tree separates namespaces, and its storage keys did not.
    """

    def attach(self, above: Node, key: PageKeys, extra: str | None, priority: int) -> Node:
        """The chain starts without a seed."""
        node = super().attach(above, key, extra, priority)
        if above.id == ROOT:
            node.hashes = chain(key, None, self.profile.bigram)
        return node


@plant("pairs-hashed-as-tokens", "K9", "SG-19570", expected="HC-HASH-01")
class PairsHashedAsTokens(Model):
    """In bigram mode a page is hashed over its tokens, and whoever asks by pairs finds nothing.

    SGLang with speculative decoding: the tree hashes pairs, the prefetch query hashed single tokens.
    """

    def attach(self, above: Node, key: PageKeys, extra: str | None, priority: int) -> Node:
        """Never pairs."""
        node = super().attach(above, key, extra, priority)
        node.hashes = chain(key, above.hashes[-1] if above.id != ROOT else namespace_seed(extra))
        return node


@plant("chain-restarts", "K9", "D7", expected="HC-HASH-01")
class ChainRestarts(Model):
    """The hashes of a node below another one begin a chain of their own.

    SGLang: a node that is hashed under a parent without hashes gets the keys of another prompt.
    """

    def attach(self, above: Node, key: PageKeys, extra: str | None, priority: int) -> Node:
        """As if it were at the top."""
        node = super().attach(above, key, extra, priority)
        node.hashes = chain(key, namespace_seed(extra), self.profile.bigram)
        return node
