"""Where our kernels may stand in for SGLang's lines, and what is recorded of it."""

import json
import os
import re
import subprocess
import sys
from types import SimpleNamespace

import pytest
import torch
from sglang.srt import server_args
from sglang.srt.layers.layernorm import Gemma4RMSNorm, RMSNorm
from sglang.srt.plugins.hook_registry import HookRegistry

from gemma4_runtime.catalog import CATALOG
from gemma4_runtime.current import switched_on
from gemma4_runtime.fusion import eligible, ops
from gemma4_runtime.fusion.carried_norm import CarriedNorm
from gemma4_runtime.fusion.paths import FUSED, PATHS, REFERENCE, Paths
from gemma4_runtime.optimisations.moe_routing import FusedRouting
from gemma4_runtime.patch import Kind
from gemma4_runtime.session import Session
from gemma4_runtime.settings import read_settings

# No layer op is ported: 0.5.23's layers go through layers/layer_boundary.
pytestmark = pytest.mark.releases("0.5.13.post1")

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
OPS = [patch for patch in CATALOG if patch.kind is Kind.OPTIMISATION]


@pytest.fixture
def session(monkeypatch, tmp_path):
    """Yield a session of this process with every optimisation, as a server with CUDA has it: no host engine."""
    monkeypatch.setenv("SGLANG_TRTLLM_MHA_DEBUG_DIR", str(tmp_path))
    made = Session(read_settings(), tuple(OPS))
    made.start()
    HookRegistry.apply_hooks()
    yield made
    made.stop()


def rows():
    return torch.randn(2, 16, device=DEVICE, dtype=torch.bfloat16)


def manifest_rows(tmp_path):
    (path,) = (tmp_path / "guards").glob("*.json")
    return {row["id"]: row for row in json.loads(path.read_text())["patches"]}


class TestCarriedNorm:
    @pytest.fixture
    def norm(self):
        return RMSNorm(16).to(DEVICE, torch.bfloat16)

    def test_the_very_tensor_gets_what_was_carried_once(self, norm):
        carried, hidden, normed = CarriedNorm(norm), rows(), rows() * 0 + 7
        own = norm(hidden)
        carried.carry(hidden, normed)
        assert norm(hidden) is normed
        assert torch.equal(norm(hidden), own)

    def test_equal_values_in_another_tensor_are_normed(self, norm):
        carried, hidden = CarriedNorm(norm), rows()
        own = norm(hidden)
        carried.carry(hidden, rows() * 0 + 7)
        assert torch.equal(norm(hidden.clone()), own)
        # What was carried for a tensor that did not come is gone.
        assert torch.equal(norm(hidden), own)

    def test_a_norm_with_a_residual_is_its_own(self, norm):
        carried, hidden = CarriedNorm(norm), rows()
        carried.carry(hidden, rows() * 0 + 7)
        normed, _ = norm(hidden, rows() * 0)
        assert not (normed == 7).any()


class TestNorms:
    def test_plain_norms_of_one_eps(self):
        assert eligible.norms_reason(RMSNorm(16), Gemma4RMSNorm(16), Gemma4RMSNorm(16, with_scale=False)) is None

    @pytest.mark.parametrize(
        ("norm", "reason"),
        [
            (Gemma4RMSNorm(16, scale_shift=1.0), "Gemma4RMSNorm that is not"),
            (RMSNorm(16, var_hidden_size=8), "RMSNorm that is not"),
            (RMSNorm(16, cast_x_before_out_mul=True), "RMSNorm that is not"),
            (torch.nn.LayerNorm(16), "LayerNorm that is not"),
            (RMSNorm(16, weight_dtype=torch.float64), r"\[16\] torch.float64"),
            (RMSNorm(1 << 15), "32768"),
            (RMSNorm(16, eps=1e-5), "different eps"),
        ],
    )
    def test_what_our_kernels_do_not_compute(self, norm, reason):
        assert re.search(reason, eligible.norms_reason(RMSNorm(16), norm) or "taken")

    @pytest.mark.parametrize(
        ("deterministic", "on_policy", "reason"),
        [(False, None, None), (True, None, "batch-invariant"), (False, "fsdp", "trainer")],
    )
    def test_servers_that_must_have_sglangs_arithmetic(self, monkeypatch, deterministic, on_policy, reason):
        asked = SimpleNamespace(enable_deterministic_inference=deterministic, rl_on_policy_target=on_policy)
        monkeypatch.setattr(server_args, "_global_server_args", asked)
        found = eligible.server_reason()
        assert (found is None) if reason is None else (reason in found)


class TestRows:
    def test_a_cpu_without_the_host_engine_is_refused(self, session):
        assert eligible.rows_reason(torch.zeros(2, 16)) == "hidden states on cpu"

    @pytest.mark.parametrize(
        "rows", [torch.zeros(2, 3, 16), torch.zeros(16, 2).T, torch.zeros(2, 16, dtype=torch.float64)]
    )
    def test_shapes_and_dtypes(self, session, monkeypatch, rows):
        monkeypatch.setattr(eligible, "on_host_engine", lambda: True)
        assert "hidden states of" in eligible.rows_reason(rows)
        assert eligible.rows_reason(torch.zeros(0, 16)) is None

    def test_alike(self):
        first = torch.zeros(2, 16)
        assert eligible.alike(torch.ones(4, 16)[::2], first)
        for other in (torch.zeros(2, 15), torch.zeros(2, 16).half(), torch.zeros(16, 2).T, first.to("meta")):
            assert not eligible.alike(other, first)


class TestRouting:
    @pytest.mark.parametrize(
        ("deterministic", "experts", "top_k", "renormalize", "reason"),
        [
            (False, 8, 2, True, REFERENCE),
            (True, 8, 2, True, "deterministic inference"),
            (False, 257, 2, True, "2 of 257 experts"),
            (False, 32, 17, True, "17 of 32 experts"),
            (False, 8, 2, False, "not renormalised"),
        ],
    )
    def test_what_takes_sglangs_own(self, session, monkeypatch, deterministic, experts, top_k, renormalize, reason):
        monkeypatch.setattr(eligible, "on_host_engine", lambda: True)
        asked = SimpleNamespace(enable_deterministic_inference=deterministic, rl_on_policy_target=None)
        monkeypatch.setattr(server_args, "_global_server_args", asked)
        PATHS.__init__()
        route = FusedRouting(lambda *given: given, torch.ones(experts))
        logits = torch.randn(3, experts)
        found = route(logits, logits, top_k, renormalize)
        ((why, count),) = PATHS.document()["routing"].items()
        PATHS.__init__()
        assert reason in why
        assert count == 1
        if reason == REFERENCE:
            assert torch.equal(found[1], logits.topk(top_k).indices.int())
        else:
            assert found == (logits, logits, top_k, renormalize)

    def test_rocm_calls_its_devices_cuda_too(self, session, monkeypatch):
        monkeypatch.setattr(eligible, "on_host_engine", lambda: True)
        monkeypatch.setattr(torch.version, "hip", "6.4")
        assert eligible.rows_reason(torch.zeros(2, 16)) == "hidden states on ROCm"


def test_a_model_that_outlives_its_session_has_no_op_in_force(session):
    assert switched_on("routing")
    session.stop()
    assert not switched_on("routing")


class TestRecord:
    def test_each_path_once_in_the_manifest_and_counted(self, session, tmp_path):
        paths = Paths()
        for _ in range(3):
            paths.took("routing")
        paths.took("routing", "hidden states on cpu")
        assert paths.document() == {"routing": {FUSED: 3, "hidden states on cpu": 1}}
        assert manifest_rows(tmp_path)["routing"]["paths"] == [FUSED, "hidden states on cpu"]
        assert "paths" not in manifest_rows(tmp_path)["gelu-tanh-mul"]

    @pytest.mark.parametrize(("device", "path"), [("cpu", REFERENCE), ("cuda", FUSED)])
    def test_what_ran_is_counted_the_kernel_or_its_reference(self, session, tmp_path, device, path):
        if device == "cuda" and not torch.cuda.is_available():
            pytest.skip("needs a CUDA device, and this machine has none")
        paths = Paths()
        paths.ran("routing", torch.zeros(1, device=device))
        assert paths.document() == {"routing": {path: 1}}
        assert manifest_rows(tmp_path)["routing"]["paths"] == [path]

    def test_ops_of_one_function_share_its_hook(self, session):
        hooks = HookRegistry._hooks["sglang.srt.models.gemma4_causal.Gemma4DecoderLayer.forward"]
        assert len(hooks) == 1
        assert all(row["attached"] for row in session.attachment.status())


# The tests' own process has Dynamo switched off.
TRACED = """
import json
import torch
from gemma4_runtime.fusion import ops
from gemma4_runtime.fusion.paths import PATHS

def draw(*shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape)))

rows, more, w, one = draw(5, 32), draw(5, 32) + 1, draw(32), torch.tensor([0.7])
calls = {
    "routing": (draw(5, 8), draw(8), 2),
    "triple_rmsnorm": (rows, w, more, w, w, w, 1e-6),
    "post_attention_norms": (rows, w, more, w, 1e-6),
    "rmsnorm_add": (rows, w, more, 1e-6),
    "gelu_tanh_mul": (rows, draw(5, 3, 32)[:, 1]),
    "rmsnorm_residual_scalar": (rows, w, more, one, 1e-6),
    "ple_front_end": (draw(5, 3, 32), w, draw(5, 3, 32) + 1, 64, 1e-6),
    "qk_norm_rope": (*draw(5, 160).split([96, 32, 32], dim=1), w, w + 1, draw(9, 32), torch.arange(5), 1e-6),
    "q_only_projection": (rows, draw(48, 32), draw(48), 24),
}
for name, arguments in calls.items():
    torch._dynamo.reset()
    op = getattr(ops, name)
    plain = op(*arguments)
    traced = torch.compile(lambda *a: op(*a), fullgraph=True, backend="aot_eager", dynamic=True)(*arguments)
    pairs = zip(plain, traced, strict=True) if isinstance(plain, tuple) else [(plain, traced)]
    assert all(torch.equal(a, b) for a, b in pairs), name
    torch.library.opcheck(getattr(ops, "_" + name), arguments)
assert {op: set(paths) for op, paths in PATHS.document().items()} == {
    # On a CPU a kernel's reference runs; a product of fewer rows has no kernel.
    name.replace("_", "-"): {"fused" if name == "q_only_projection" else "reference"} for name in calls
}
torch.library.opcheck(ops._q_only_projection, (rows, draw(48, 32), None, 24))
torch.library.opcheck(ops._ple_front_end, (draw(5, 3, 32), w, None, 64, 1e-6))
shared = (draw(5, 96), None, None, w, w, draw(9, 32), torch.arange(5), 1e-6)
traced = torch.compile(lambda *a: ops.qk_norm_rope(*a), fullgraph=True, backend="aot_eager", dynamic=True)(*shared)
assert torch.equal(ops.qk_norm_rope(*shared).q, traced.q) and traced.k is None and traced.v is None
torch.library.opcheck(ops._qk_norm_rope, shared)
print(json.dumps(sorted(calls)))
"""


@pytest.mark.slow
def test_each_op_can_be_traced_whole():
    environment = {name: value for name, value in os.environ.items() if name != "TORCHDYNAMO_DISABLE"}
    done = subprocess.run([sys.executable, "-c", TRACED], capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr[-3000:]
    traced = json.loads(done.stdout.strip().splitlines()[-1])
    # cross-layer-norm carries a tensor from one layer to the next, which a trace does not follow; the others launch no
    # kernel of ours.
    without = {"cross-layer-norm", "yoco", "vision-batching", "owner-only-kv", "swa-ratio-policy"}
    without |= {"piecewise-multimodal", "mtp-v2", "draft-policy", "spec-v2-whole-pages", "swa-window-lists"}
    # In a trace a product is SGLang's own, and no decode step is traced, nor is what is ahead of and behind the layers.
    without |= {
        "small-m-linear",
        "streamed-products",
        "layer-tail",
        "routed-experts",
        "dense-beside-experts",
        "decode-attention",
        "attention-front",
        "token-embeddings",
        "capped-logits",
    }
    assert set(traced) == {patch.id.replace("-", "_") for patch in OPS if patch.id not in without}
    assert all(hasattr(ops, name) for name in traced)
