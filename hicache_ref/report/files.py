"""Where reports lie: beside each other `REQUIREMENT-HASH.txt` for people and `REQUIREMENT-HASH.jsonl` to replay."""

import os
from collections.abc import Sequence
from contextlib import suppress
from hashlib import sha256
from pathlib import Path

from hicache_ref.oracle.known import canonical
from hicache_ref.search.finding import Finding, Recorded
from hicache_ref.trace import TraceError
from hicache_ref.vocabulary.profile import Profile


def stem(finding: Finding, profile: Profile, steps: Sequence[Recorded]) -> str:
    """The name, without suffix, that the same divergence gets again: place, profile and steps up to names of handles.

    Two crashes of one trace are two findings, and each has its own files. A rule that is new and has its reference
    value changes no name.
    """
    parts = (finding.operation, str(finding.raised), profile.model_dump_json(exclude_defaults=True))
    text = "\n".join((*parts, *canonical([step.op for step in steps])))
    return f"{finding.requirement}-{sha256(text.encode()).hexdigest()[:8]}"


def write_text(path: Path, text: str) -> None:
    """The file holds `text`, or is as before. Raises TraceError where it cannot be written."""
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        draft.write_text(text, encoding="utf-8")
        draft.replace(path)
    except OSError as problem:
        with suppress(OSError):
            draft.unlink(missing_ok=True)
        raise TraceError(path, None, f"cannot be written ({problem.strerror}), expected room in the folder") from None
