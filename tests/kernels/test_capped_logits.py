"""capped_logits against fp64 and, on a GPU, bit for bit against SGLang's copy and kernel."""

import pytest
import torch
from kernel_paths import DEVICE, PATHS, cases_here
from row_op_tests import LAYOUTS, lay_out, poisoned

from gemma4_kernels.capped_logits import spec
from gemma4_kernels.capped_logits.launch import capped_logits

CAP = 30.0
DTYPES = (torch.bfloat16, torch.float16)
TOLERANCE = spec.TOLERANCES["bfloat16"].relative * CAP


def make(case, dtype):
    random = torch.Generator().manual_seed(case.rows)
    # From far below the cap to far above.
    spread = torch.logspace(-3, 3, case.width)
    return (torch.randn(case.rows, case.width, generator=random) * spread).to(dtype).to(DEVICE)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("case", cases_here(spec.CASES))
@pytest.mark.parametrize("path", PATHS)
def test_against_fp64(path, case, dtype):
    logits = make(case, dtype)
    before = logits.clone()
    found = capped_logits(logits, CAP, path=path)
    assert (found.shape, found.dtype, found.is_contiguous()) == (logits.shape, torch.float32, True)
    wanted = CAP * torch.tanh(logits.double() / CAP)
    assert ((found.double() - wanted).abs() <= TOLERANCE).all()
    # The logits themselves are somebody else's.
    assert torch.equal(logits, before)
    out = torch.full(logits.shape, torch.nan, device=DEVICE)
    assert capped_logits(logits, CAP, out=out, path=path) is out
    assert torch.equal(out, found)


ODD = (0.0, -0.0, torch.inf, -torch.inf, torch.nan, 3e38, -3e38, 1e-39, 30.0, -1e4, 65504.0, 2**-20)


@pytest.mark.parametrize("cap", [30.0, 0.5, 1e4])
@pytest.mark.parametrize("path", PATHS)
def test_what_no_model_should_give(path, cap):
    logits = torch.tensor([ODD, ODD[::-1]], dtype=torch.bfloat16, device=DEVICE)
    found = capped_logits(logits, cap, path=path)
    wanted = cap * torch.tanh(logits.double() / cap)
    assert torch.equal(found.isnan(), logits.isnan())
    assert ((found.double() - wanted).abs().nan_to_num(0) <= 2**-21 * cap).all()
    assert found.nan_to_num(0).abs().max() == cap


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("path", PATHS)
def test_where_rows_may_lie(path, layout):
    logits = make(spec.CASES[2], torch.bfloat16)
    wanted = capped_logits(logits, CAP, path=path)
    same = logits if layout != "one-row-for-all" else logits[:1].expand(len(logits), -1)
    wanted = wanted if layout != "one-row-for-all" else wanted[:1].expand(len(logits), -1)
    assert torch.equal(capped_logits(lay_out(same, layout), CAP, path=path), wanted)


@pytest.mark.parametrize("path", PATHS)
def test_a_vocabulary_that_is_cut_and_a_buffer_that_is_wider(path):
    logits = make(spec.CASES[3], torch.bfloat16)
    out, memory = poisoned(3, 2000, torch.float32, 48)
    capped_logits(logits[:, :2000], CAP, out=out, path=path)
    assert torch.equal(out, capped_logits(logits, CAP, path=path)[:, :2000])
    assert (memory[:, 2000:] == 77).all()


@pytest.mark.gpu
# Where that release has the kernel; later ones have it elsewhere.
@pytest.mark.releases("0.5.13.post1")
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("rows", [1, 8, 64])
def test_on_a_gpu_all_bits_are_sglangs(rows, dtype):
    from sglang.srt.layers.triton_ops.softcap import softcap_inplace_logits

    logits = torch.randn(rows, 262144, generator=torch.Generator().manual_seed(rows)) * 40
    # Every number of the dtype is among them.
    every = torch.arange(2**16, dtype=torch.int32).to(torch.int16).view(dtype)
    logits = logits.to(dtype)
    logits[0, : 2**16] = every
    logits = logits.cuda()
    wanted = softcap_inplace_logits(logits.float(), CAP)
    found = capped_logits(logits, CAP)
    assert torch.equal(found.view(torch.int32)[~wanted.isnan()], wanted.view(torch.int32)[~wanted.isnan()])
    assert torch.equal(found.isnan(), wanted.isnan())


LOGITS = torch.zeros(2, 16, dtype=torch.bfloat16)


@pytest.mark.parametrize(
    ("logits", "cap", "out", "message"),
    [
        (LOGITS[0], CAP, None, "logits is"),
        (LOGITS[:, :0], CAP, None, "logits is"),
        (LOGITS.float(), CAP, None, "float32, expected"),
        (LOGITS.T, CAP, None, "stride 16 inside a row"),
        (LOGITS, 0.0, None, "cap is 0"),
        (LOGITS, torch.nan, None, "cap is nan"),
        (LOGITS, CAP, torch.zeros(2, 16).bfloat16(), "out is"),
        (LOGITS, CAP, torch.zeros(2, 15), "out is"),
        (LOGITS, CAP, torch.zeros(16, 2).T, "out has the strides"),
        (LOGITS, CAP, torch.zeros(1, 16).expand(2, 16), "do not overlap"),
    ],
)
def test_what_it_refuses(logits, cap, out, message):
    with pytest.raises(ValueError, match=message):
        capped_logits(logits, cap, out=out)
