"""Committed traces of real decode steps, dumps/samples/*.trace.json.gz, in the terms that README uses of them.

They are recorded with gemma4_repro.bench.record_trace on a machine with a GPU.
"""

import gzip
import json
import re
from pathlib import Path

import pytest

from gemma4_repro.bench.record_trace import SAMPLE_BYTES
from gemma4_triage.logs.source import Source
from gemma4_triage.step_profile.analyse import DeviceProfile, analyse
from gemma4_triage.step_profile.trace_file import TraceFile
from gemma4_triage.step_profile.trace_tables import read_tables

FOLDER = Path(__file__).parents[2] / "dumps" / "samples"
SAMPLES = sorted(FOLDER.glob("*.trace.json.gz"))
_MOST_OTHER = 0.02


@pytest.fixture(params=SAMPLES, ids=lambda path: path.name)
def sample(request) -> Path:
    return request.param


def profile_of(path: Path) -> tuple[DeviceProfile, dict]:
    trace = TraceFile(Source(str(path)))
    (found,) = analyse(read_tables(trace.events()))
    return found, trace.header


def test_the_samples_are_named_here():
    """Explicit where there is none yet: the tests below then have nothing to run on."""
    if not SAMPLES:
        pytest.skip(f"no trace is committed in {FOLDER.name}/: record one with gemma4_repro.bench.record_trace")


def test_steps_layers_and_families_are_found(sample):
    found, header = profile_of(sample)
    recorded = header["gemma4_triage"]
    assert found.method == "graph"
    assert len(found.cut.chosen) >= 3
    assert found.layers.count == recorded["model"]["layers"]
    ids = {family.id: family for family in found.families}
    assert {"attention", "gemm", "norm", "rope", "elementwise"} <= set(ids)
    assert "other" not in ids or ids["other"].share < _MOST_OTHER, ids["other"]
    assert sum(family.share for family in found.families) == pytest.approx(1)


def test_sglangs_sequences_are_found_in_every_layer(sample):
    found, header = profile_of(sample)
    if "GEMMA4_TRIAGE_PATCHES" in header["gemma4_triage"]["environment"]:
        pytest.skip("recorded with patches: which launches are left depends on them")
    layers = header["gemma4_triage"]["model"]["layers"]
    matches = {use.op: use.matches for use in found.replaceable}
    for op in ("rmsnorm_residual_scalar", "post_attention_norms", "gelu_tanh_mul", "rmsnorm_add", "cross_layer_norm"):
        assert matches[op] >= layers, op
    assert matches["ple_front_end"] == 1
    assert matches["qk_norm_rope"] == layers
    # In a layer without keys of its own there is a fill, too.
    (op,) = [use for use in found.replaceable if use.op == "qk_norm_rope"]
    assert op.launches == 2 * layers + header["gemma4_triage"]["model"]["layers_without_kv"]


def test_our_kernels_are_found_where_they_were_on(sample):
    found, header = profile_of(sample)
    if header["gemma4_triage"]["environment"].get("GEMMA4_TRIAGE_PATCHES") != "default":
        pytest.skip("recorded without our kernels")
    layers = header["gemma4_triage"]["model"]["layers"]
    present = {use.op: use.present for use in found.replaceable}
    for op in ("post_attention_norms", "gelu_tanh_mul", "rmsnorm_add", "cross_layer_norm"):
        assert present[op] >= layers, op
    assert present["ple_front_end"] == 1
    # A trace from before qk_norm_rope still has all that it replaces.
    (op,) = [use for use in found.replaceable if use.op == "qk_norm_rope"]
    assert op.present + op.matches == layers
    assert found.replaceable_launches - op.launches <= 0.1 * layers


def test_it_is_small_and_names_no_machine(sample):
    assert sample.stat().st_size <= SAMPLE_BYTES
    text = gzip.decompress(sample.read_bytes()).decode()
    assert re.search(r"/(?:root|home|tmp|work)\b", text) is None
    assert {event["cat"] for event in json.loads(text)["traceEvents"]} <= {
        *("kernel", "gpu_memcpy", "gpu_memset", "cuda_runtime", "cuda_driver", "user_annotation"),
        "gpu_user_annotation",
    }
