"""The transport: a child answers as the object would in this process, and whatever else it does is told apart."""

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from hicache_ref.adapters.process import (
    ImplementationRaised,
    ProcessAdapter,
    ProcessDied,
    ProcessHung,
    ProcessSpokeNonsense,
)
from hicache_ref.vocabulary.adapter import AdapterError
from hicache_ref.vocabulary.keys import Key
from hicache_ref.vocabulary.observation import Counts, Observation
from hicache_ref.vocabulary.operations import MatchPrefix, TakePages
from hicache_ref.vocabulary.outcomes import Took
from hicache_ref.vocabulary.profile import Profile

ROOT = Path(__file__).parents[2]
TOY = Path(__file__).with_name("toy_child.py")
RAISE, PANIC, DIE, HANG, PRINT, FLOOD, NOTHING = 1, 2, 3, 4, 5, 6, 7


def take(number: int) -> TakePages:
    """The operation that makes the toy act."""
    return TakePages(rid="r", n=number)


@pytest.fixture
def toy() -> Iterator[ProcessAdapter]:
    """A toy in a child process, reset."""
    adapter = ProcessAdapter([sys.executable, str(TOY)], step_timeout=20, env={"PYTHONPATH": str(ROOT)})
    with adapter:
        adapter.reset(Profile())
        yield adapter


def scripted(text: str) -> ProcessAdapter:
    """A child that runs this text."""
    return ProcessAdapter([sys.executable, "-c", text], step_timeout=20)


def pid_of(adapter: ProcessAdapter) -> int:
    """The child's process id."""
    child = adapter._child
    assert child is not None
    return child.process.pid


def is_running(pid: int) -> bool:
    """Whether the process is there and not a zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_a_child_answers_the_four_verbs(toy: ProcessAdapter) -> None:
    """Goal: nothing is lost on the way. Method: each verb once, against the same object in this process."""
    assert frozenset({"take_pages", "match_prefix"}) == toy.describe().operations
    assert Took(pages=(0, 1, 2, 3, 4, 5, 6)) == toy.apply(take(NOTHING))
    assert Observation(level="counts", counts=Counts(free_device=1)) == toy.observe("counts")


def test_a_step_is_apply_and_then_observe(toy: ProcessAdapter) -> None:
    """Goal: both answers of one round trip are those of two. Method: the observation counts the operation."""
    outcome, observation = toy.step(take(NOTHING), "counts")
    assert Took(pages=(0, 1, 2, 3, 4, 5, 6)) == outcome
    assert observation.counts.free_device == 1


def test_what_the_child_prints_does_not_reach_the_protocol(toy: ProcessAdapter) -> None:
    """Goal: a print in native code breaks nothing. Method: the toy writes to descriptor 1 and to sys.stdout."""
    assert Took(pages=(0, 1, 2, 3, 4)) == toy.apply(take(PRINT))
    assert toy.observe("counts").counts.free_device == 1


def test_a_child_that_says_much_on_standard_error_is_not_kept_waiting(toy: ProcessAdapter) -> None:
    """Goal: logging cannot hang a check. Method: megabytes, then the answer."""
    assert Took(pages=(0, 1, 2, 3, 4, 5)) == toy.apply(take(FLOOD))


@pytest.mark.parametrize(
    ("act", "text"), [(RAISE, "ValueError in _raise: no such page"), (PANIC, "index out of bounds")]
)
def test_an_exception_is_an_answer_and_the_child_lives_on(toy: ProcessAdapter, act: int, text: str) -> None:
    """Goal: an exception, also a panic, costs one step. Method: raise, then go on in the same process."""
    before = pid_of(toy)
    with pytest.raises(ImplementationRaised, match=text) as caught:
        toy.step(take(act), "counts")
    assert text in caught.value.raw
    assert re.fullmatch(r"(.*/)?toy_child\.py:\d+", caught.value.line or "")
    assert (before, 1) == (pid_of(toy), toy.observe("counts").counts.free_device)


def test_death_is_told_with_the_last_words_and_reset_starts_anew(toy: ProcessAdapter) -> None:
    """Goal: minimising goes on after a crash. Method: the toy exits with code 7 in a step."""
    with pytest.raises(ProcessDied, match="ended with code 7; its last words were: last words") as caught:
        toy.step(take(DIE), "counts")
    assert ("first words", "last words") == caught.value.stderr
    with pytest.raises(ProcessDied, match="gone until the next reset"):
        toy.apply(take(NOTHING))
    toy.reset(Profile())
    assert Took(pages=(0, 1, 2, 3, 4, 5, 6)) == toy.apply(take(NOTHING))


def test_death_by_signal_names_it(toy: ProcessAdapter) -> None:
    """Goal: a segmentation fault reads as one. Method: send the signal, then ask."""
    os.kill(pid_of(toy), signal.SIGSEGV)
    with pytest.raises(ProcessDied, match="was ended by SIGSEGV"):
        toy.apply(take(NOTHING))


def test_a_hanging_child_is_killed(toy: ProcessAdapter) -> None:
    """Goal: a hang costs the timeout and leaves nothing. Method: the toy sleeps, the timeout is short."""
    toy.step_timeout = 0.3
    pid, began = pid_of(toy), time.monotonic()
    with pytest.raises(ProcessHung, match=r"did not answer within 0\.3 s"):
        toy.apply(take(HANG))
    assert time.monotonic() - began < 5
    assert not is_running(pid)
    toy.reset(Profile())
    assert Took(pages=(0, 1, 2, 3, 4, 5, 6)) == toy.apply(take(NOTHING))


def test_lines_far_longer_than_a_pipe_pass_both_ways(toy: ProcessAdapter) -> None:
    """Goal: neither side waits for the other with a full pipe. Method: a megabyte each way, in one round trip."""
    key = Key(tokens=tuple(range(150_000)))
    outcome, observation = toy.step(MatchPrefix(key=key), "counts")
    assert outcome.kind == "matched"
    assert key.tokens == outcome.device
    assert observation.counts.free_device == 0


def test_a_refused_profile_is_an_adapter_error_in_its_own_words(toy: ProcessAdapter) -> None:
    """Goal: the user reads what to change, and nothing of processes. Method: a profile that the toy refuses."""
    with pytest.raises(AdapterError, match=r"^profile unknown: rule eviction is 'mru', expected 'lru'$"):
        toy.reset(Profile(name="unknown"))
    toy.reset(Profile())


def test_a_command_that_is_none_is_an_adapter_error() -> None:
    """Goal: a mistyped command is the user's mistake, not a divergence. Method: no such file; one that speaks prose."""
    with pytest.raises(AdapterError, match="cannot start 'no-such-command': No such file"):
        ProcessAdapter(["no-such-command"]).describe()
    with scripted("print('welcome')") as prose, pytest.raises(AdapterError, match="'welcome'"):
        prose.describe()
    with scripted("raise SystemExit('no torch here')") as dead, pytest.raises(AdapterError, match="no torch here"):
        dead.reset(Profile())


ANSWERS_RESET = """
import sys
sys.stdin.readline()
print('{"id":1,"result":{}}', flush=True)
sys.stdin.readline()
"""


@pytest.mark.parametrize(
    ("field", "why"),
    [
        ('"level":"forest"', "level is 'forest', expected 'counts', 'pages', 'tree' or 'bytes'"),
        ('"level":"tree","invalid":"dead"', "invalid is 'dead', expected 'refuses', 'dies' or 'undefined'"),
        ('"level":"tree","operations":["mach_prefix"]', "expected no mach_prefix but some of match_prefix, take_pages"),
        ('"level":"tree","colour":"red"', "unknown key result.colour, expected only known ones"),
        ('"profile":"reference"', "result.level is missing, expected a value"),
    ],
)
def test_a_wrong_description_is_told_by_field_and_values(field: str, why: str) -> None:
    """Goal: whoever writes an adapter is told what to write. Method: one wrong field each, in an answer."""
    answer = f'{{"id":1,"result":{{"name":"mine","version":"1",{field}}}}}'
    script = f"import sys\nsys.stdin.readline()\nprint({answer!r}, flush=True)\nsys.stdin.readline()"
    with scripted(script) as adapter, pytest.raises(AdapterError) as caught:
        adapter.describe()
    assert why in str(caught.value)


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        ("good morning", "not JSON \\(expected value"),
        ('{"id":2,"result":{"kind":"took"}}', "result.took.pages is missing, expected a value"),
        ('{"id":2,"result":{"kind":"dunno"}}', "unknown result 'dunno', expected one of"),
        ('{"id":1,"result":{"kind":"done"}}', "id 1, expected 2"),
        ('{"id":2}', "neither result nor error"),
    ],
)
def test_an_answer_that_is_none_is_shown_as_it_came(answer: str, why: str) -> None:
    """Goal: whoever writes an adapter sees his line and what is wrong with it. Method: one wrong line each."""
    with scripted(f"{ANSWERS_RESET}print({answer!r}, flush=True)\nsys.stdin.readline()") as adapter:
        adapter.reset(Profile())
        with pytest.raises(ProcessSpokeNonsense, match=why) as caught:
            adapter.apply(take(NOTHING))
        assert answer == caught.value.raw


def test_the_child_does_not_outlive_us() -> None:
    """Goal: no orphan, whatever happens to us. Method: a process with a child is killed hard; close() for the rest."""
    owner = (
        "import sys\nfrom hicache_ref.adapters.process import ProcessAdapter\n"
        f"adapter = ProcessAdapter([sys.executable, {str(TOY)!r}])\nadapter.describe()\n"
        "print(adapter._child.process.pid, flush=True)\nsys.stdin.readline()\n"
    )
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    with subprocess.Popen(
        [sys.executable, "-c", owner], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=env, text=True
    ) as process:
        assert process.stdout is not None
        pid = int(process.stdout.readline())
        process.kill()
    for _ in range(100):
        if not is_running(pid):
            break
        time.sleep(0.05)
    assert not is_running(pid)


def test_close_ends_the_child(toy: ProcessAdapter) -> None:
    """Goal: close() leaves nothing. Method: look for the process."""
    pid = pid_of(toy)
    toy.close()
    assert not is_running(pid)


def test_a_child_that_cannot_start_is_named_by_its_adapter() -> None:
    """Goal: told which engine it was, not which Python. Method: a process that ends at once, with a name or none."""
    for name in ("my-engine", ""):
        adapter = ProcessAdapter([sys.executable, "-c", "raise SystemExit('no driver')"], name=name)
        with pytest.raises(AdapterError, match=f"cannot describe '{name or sys.executable}': .*no driver"):
            adapter.describe()
