"""The committed samples and a far page, replayed on the real kernels: right tables, wrong pages, illegal accesses.

Each backend runs in a subprocess of its own, several at a time. This process never makes a CUDA context, so that a
fault in one of them is all that happens.
"""

import re
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from gemma4_dumps.draft import DumpDraft, TensorPayload
from gemma4_dumps.reader import read_dump
from gemma4_dumps.schema import Provenance
from gemma4_dumps.store import DumpStore
from gemma4_triage.replay.options import ReplayOptions
from gemma4_triage.replay.outcome import Status
from gemma4_triage.replay.run import replay
from gemma4_triage.replay.tables import AS_DUMPED, CLAMP, CONTAIN, INTENDED

# What runs on a GPU alone has run with this release alone.
pytestmark = [pytest.mark.gpu, pytest.mark.releases("0.5.13.post1")]

SAMPLES = Path(__file__).parents[2] / "dumps" / "samples"
(SEED_BUG,) = SAMPLES.glob("*p24275*")
(CONTAINED,) = SAMPLES.glob("*p1291*")
OPTIONS = ReplayOptions(heads=(8, 2), head_dim=64)
# XQA and FlashInfer compile their kernels at the first call of a shape, several of them side by side here.
TIMEOUT_S = 900
HOPPER = re.compile(r"\bG?H(20|100|200|800)\b")
KERNELS = ("triton", "flashinfer", "trtllm_mha")
RUNS = [("contained", "torch"), *((case, name) for name in KERNELS for case in ("contained", "seed"))]
RUNS += [("far", "triton"), ("far", "trtllm_mha")]


def far_dump(root):
    """Return one entry 2**24 pages, 64 GiB, behind the buffer; the rest is as it should be.

    XQA multiplies page ids in 32 bits, in heads of 128 bytes: from 2**27 pages on it would come round to the front.
    """
    right = np.arange(1, 17, dtype=np.int32).reshape(2, 8)
    table = right.copy()
    table[1, 3] = 65 + 2**24
    tensors = {"page_table": table, "translated_page_table": right, "cache_seqlens": np.array([128, 120], np.int32)}
    draft = DumpDraft(
        rule="page-table-bounds",
        verdict="out_of_range",
        summary="a page far behind the buffer",
        mode="log",
        action="logged",
        site="test",
        provenance=Provenance(table_space="full", buffer_space="swa", table_origin="test.page_table"),
        page_size=16,
        extents={"pages_in_buffer": 65},
        scalars={"window_left": -1},
        tensors={name: TensorPayload.from_array(array) for name, array in tensors.items()},
    )
    outcome = DumpStore(root).write(draft)
    assert outcome.path is not None, outcome
    return outcome.path


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory):
    """(case, backend) -> its outcome, and its variants by name."""
    paths = {"contained": CONTAINED, "seed": SEED_BUG, "far": far_dump(tmp_path_factory.mktemp("far"))}

    def run(case, name):
        (found,) = replay(read_dump(paths[case]), OPTIONS, [name], TIMEOUT_S).backends
        return found, {variant.variant: variant for variant in found.variants}

    with ThreadPoolExecutor(4) as pool:
        return dict(zip(RUNS, pool.map(lambda pair: run(*pair), RUNS), strict=True))


@pytest.mark.parametrize(("case", "name"), RUNS)
def test_tables_inside_the_buffer_give_what_fp64_gives(outcomes, case, name):
    found, by_name = outcomes[case, name]
    assert found.refusal is None, found
    print(f"\n{case} on {name}: {found.device}, {found.dtype}, {found.seconds:.1f} s")
    for variant in (INTENDED, CONTAIN, CLAMP):
        assert by_name[variant].status is Status.RAN, found
        assert by_name[variant].from_table.fine, (variant, by_name[variant])
        print(f"  {variant}: max abs {by_name[variant].from_table.max_abs:.2e} from fp64")


@pytest.mark.parametrize("name", ["torch", *KERNELS])
def test_wrong_pages_inside_the_buffer_are_read_in_silence(outcomes, name):
    """The window, 32 of 64-token pages: rows 1 and 2 read what is not theirs, row 0 is right."""
    found, by_name = outcomes["contained", name]
    assert by_name[AS_DUMPED].status is Status.RAN, found
    assert by_name[AS_DUMPED].from_table.fine
    assert by_name[AS_DUMPED].from_intended.bad_rows == (1, 2)
    assert found.wrong


@pytest.mark.parametrize("name", KERNELS)
def test_a_page_just_behind_the_buffer(outcomes, name):
    """Page 65 of 65: Hopper's kernels read what lies there, as the replay models it; Blackwell's loads may fault."""
    found, by_name = outcomes["seed", name]
    if by_name[AS_DUMPED].status is Status.ILLEGAL_ACCESS and not HOPPER.search(found.device):
        return
    assert by_name[AS_DUMPED].status is Status.RAN, found
    assert by_name[AS_DUMPED].from_table.fine, by_name[AS_DUMPED]
    assert by_name[AS_DUMPED].from_intended.bad_rows == (5,)


@pytest.mark.parametrize("name", ["triton", "trtllm_mha"])
def test_a_far_page_is_an_illegal_access_and_a_result(outcomes, name):
    found, by_name = outcomes["far", name]
    assert by_name[AS_DUMPED].status is Status.ILLEGAL_ACCESS, found
    assert by_name[CONTAIN].from_intended.bad_rows == (1,)
    assert found.wrong
