"""Redis as a store: one string an object. The cheapest store that several machines can share."""

import re
from collections.abc import Iterator, Sequence
from typing import Annotated, Any

from pydantic import Field, PositiveFloat

from hicache_ref.storage.base import Buffer, Handle, StorageError, expect_pairs, flat, leading, required
from hicache_ref.vocabulary.base import Frozen

_AT_ONCE = 128
"""Objects a round trip: upstream's batch."""


class RedisOptions(Frozen):
    """How the server is used."""

    prefix: str = "hicache:"
    """What every key begins with; `clear` removes only such keys."""

    timeout: PositiveFloat = 10.0
    """Seconds for an answer."""


class RedisBackend(Handle):
    """The database `db` of the server as a store. Raises StorageError where it does not answer."""

    def __init__(self, host: str, port: int, db: Annotated[int, Field(ge=0)] = 0,
                 options: RedisOptions | None = None) -> None:  # fmt: skip
        super().__init__()
        self._redis = required("redis", extra="redis")
        self._options = options or RedisOptions()
        self._where = f"redis://{host}:{port}/{db}"
        timeout = self._options.timeout
        again = required("redis.retry", extra="redis").Retry(required("redis.backoff", extra="redis").NoBackoff(), 1)
        self._client: Any = self._redis.Redis(
            host, port, db, socket_timeout=timeout, socket_connect_timeout=timeout, retry=again
        )
        self._ask(self._client.ping)

    def exists(self, keys: Sequence[str]) -> int:
        """How many of `keys` the server has, from the first on."""
        self.expect_open()
        count = 0
        for start, end in _parts(len(keys)):
            pipe = self._client.pipeline(transaction=False)
            for key in keys[start:end]:
                pipe.exists(self._name(key))
            run = leading(map(bool, self._ask(pipe.execute)))
            count += run
            if run < end - start:
                break
        return count

    def read(self, keys: Sequence[str], into: Sequence[Buffer]) -> list[bool]:
        """For each key whether its buffer holds the object."""
        self.expect_open()
        expect_pairs(keys, into)
        found = []
        for start, end in _parts(len(keys)):
            names = [self._name(key) for key in keys[start:end]]
            for stored, view in zip(self._ask(self._client.mget, names), into[start:end], strict=True):
                hit = stored is not None and len(stored) == view.nbytes
                if hit and stored:
                    flat(view)[:] = stored
                found.append(hit)
        self._count_reads(found, into)
        return found

    def write(self, keys: Sequence[str], pages: Sequence[Buffer]) -> list[bool]:
        """For each key whether the server has it now; false where it refused, for want of memory or for its size."""
        self.expect_open()
        expect_pairs(keys, pages)
        done = []
        for start, end in _parts(len(keys)):
            pipe = self._client.pipeline(transaction=False)
            for key, page in zip(keys[start:end], pages[start:end], strict=True):
                pipe.set(self._name(key), flat(page), nx=True)
            answers = self._ask(pipe.execute, raise_on_error=False)
            for answer, page in zip(answers, pages[start:end], strict=True):
                refused = isinstance(answer, Exception)
                done.append(not refused)
                new = bool(answer) and not refused
                kept = not refused and not new
                self.tally.add(stored=new, refused=refused, kept=kept, bytes_written=page.nbytes if new else 0)
        return done

    def clear(self) -> None:
        """No key with our prefix is left."""
        self.expect_open()
        pattern = re.sub(r"([*?\[\]\\])", r"\\\1", self._options.prefix) + "*"
        names = self._ask(lambda: list(self._client.scan_iter(match=pattern, count=1000)))
        for start, end in _parts(len(names)):
            self._ask(self._client.unlink, *names[start:end])

    def _let_go(self) -> None:
        self._client.close()

    def _name(self, key: str) -> bytes:
        return (self._options.prefix + key).encode(errors="surrogatepass")

    def _ask(self, call: Any, *arguments: Any, **options: Any) -> Any:
        """The server's answer. Raises StorageError."""
        try:
            return call(*arguments, **options)
        except (self._redis.RedisError, OSError) as error:
            raise StorageError(f"{self._where}: {error}, expected a Redis server that answers") from error


def _parts(count: int) -> Iterator[tuple[int, int]]:
    return ((start, min(count, start + _AT_ONCE)) for start in range(0, count, _AT_ONCE))
