"""Where reports lie: beside each other `REQUIREMENT-HASH.txt` for people and `REQUIREMENT-HASH.jsonl` to replay."""

from collections.abc import Sequence
from hashlib import sha256
from pathlib import Path

from hicache_ref.oracle.known import canonical
from hicache_ref.search.finding import Recorded
from hicache_ref.trace import TraceError
from hicache_ref.vocabulary.profile import Profile


def stem(requirement: str, profile: Profile, steps: Sequence[Recorded]) -> str:
    """The name, without suffix, that the same divergence gets again: profile and steps up to the names of handles."""
    text = "\n".join((profile.model_dump_json(), *canonical([recorded.op for recorded in steps])))
    return f"{requirement}-{sha256(text.encode()).hexdigest()[:8]}"


def write_text(path: Path, text: str) -> None:
    """The file holds `text`. Raises TraceError where it cannot be written."""
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as problem:
        raise TraceError(path, None, f"cannot be written ({problem.strerror}), expected room in the folder") from None
