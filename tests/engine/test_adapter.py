"""The adapter `engine`: it conforms in every layout, byte by byte, and wrong copies and missing waits are found."""

import pytest

from hicache_ref.adapters.engine import DeviceName, EngineAdapter, make
from hicache_ref.engine.controller import Controller
from hicache_ref.engine.small import SmallModel
from hicache_ref.faults.hunt import Recording, hunt
from hicache_ref.model.chooser import Chooser
from hicache_ref.oracle.lockstep import Lockstep
from hicache_ref.requirements import Checker
from hicache_ref.search.finding import Finding
from hicache_ref.vocabulary.adapter import AdapterError
from hicache_ref.vocabulary.profile import Profile
from tests.engine import missing_waits, wrong_copies

STEPS, LONG_STEPS = 400, 20_000
SMALL = SmallModel()
MODELS = [
    SmallModel(kind="mha", layout="layer_first"), SmallModel(kind="mha", layout="layer_first", io="direct"),
    SmallModel(kind="mha", layout="page_first"), SmallModel(kind="mha", layout="page_first_direct"),
    SmallModel(kind="mha", layout="page_first_direct", io="kernel_ascend"), SmallModel(kind="mha", layout="page_head"),
    SmallModel(kind="mla", layout="layer_first"), SmallModel(kind="mla", layout="page_first"),
    SmallModel(kind="mla", layout="page_first", io="direct"), SmallModel(kind="mla", layout="page_first_kv_split"),
]  # fmt: skip


def _finding(adapter: EngineAdapter, steps: int, *, state: bool, draft: bool = False, seed: int = 1) -> Finding | None:
    """What walks of so many steps find, each page compared after each step."""
    description = adapter.describe()

    def opening(profile: Profile, chooser: Chooser) -> Recording:
        return Lockstep(adapter, description, profile, "bytes", Checker(profile))

    base = Profile(draft=draft)
    return hunt(opening, seed=seed, steps=steps, base=base, state=state).finding


@pytest.mark.parametrize("small", MODELS, ids=lambda small: f"{small.kind}-{small.layout}-{small.io}")
@pytest.mark.parametrize("state", [False, True], ids=["plain", "hybrid"])
def test_it_conforms_in_every_layout(small: SmallModel, state: bool) -> None:
    """Goal: no alarm where nothing is wrong. Method: walks of the model beside it, all bytes compared."""
    assert _finding(EngineAdapter(small), STEPS, state=state) is None


@pytest.mark.long
@pytest.mark.parametrize("small", MODELS, ids=lambda small: f"{small.kind}-{small.layout}-{small.io}")
@pytest.mark.parametrize("state", [False, True], ids=["plain", "hybrid"])
def test_it_conforms_in_every_layout_for_long(small: SmallModel, state: bool) -> None:
    """Goal: nor where it is rare. Method: longer walks."""
    adapter = EngineAdapter(small)
    assert _finding(adapter, LONG_STEPS, state=state, seed=2) is None


@pytest.mark.parametrize("device", ["simulated", "cpu"])
@pytest.mark.parametrize("kind", wrong_copies.PLANTED, ids=lambda kind: kind.__name__)
def test_a_wrong_copy_is_found(kind: type[Controller], device: DeviceName) -> None:
    """Goal: comparing bytes means something. Method: copies with one fault each, in order, until the first finding."""
    found = _finding(
        EngineAdapter(SMALL, kind=kind, device=device), LONG_STEPS, state=kind in wrong_copies.OF_STATES,
        draft=kind in wrong_copies.OF_DRAFTS,
    )  # fmt: skip
    assert found is not None


@pytest.mark.long
@pytest.mark.parametrize("kind", missing_waits.PLANTED, ids=lambda kind: kind.__name__)
def test_a_missing_wait_is_found(kind: type[Controller]) -> None:
    """Goal: the order of calls is judged here, too. Method: controllers with one wait less."""
    assert _finding(EngineAdapter(SMALL, kind=kind), LONG_STEPS, state=kind in missing_waits.OF_STATES) is not None


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"layouts": "page_head"}, "unknown option 'layouts' of engine, expected one of kind=, layout="),
        ({"layout": "page_last"}, "option layout=page_last of engine: Input should be 'layer_first'"),
        ({"device": "cuda"}, "option device=cuda of engine: Input should be 'simulated' or 'cpu'"),
        ({"layers": "0"}, "option layers=0 of engine: Input should be greater than or equal to 1"),
        ({"io": "kernel", "layout": "page_first_kv_split"}, "option layout of engine: io backend kernel with layout"),
        ({"kind": "mla", "layout": "page_head"}, "option layout of engine: io backend kernel with layout page_head"),
    ],
)
def test_a_wrong_option_is_one_line(options: dict[str, str], words: str) -> None:
    """Goal: what is wrong is said. Method: options that there are not."""
    with pytest.raises(AdapterError) as error:
        make(options)
    assert words in str(error.value)
    assert "\n" not in str(error.value)
