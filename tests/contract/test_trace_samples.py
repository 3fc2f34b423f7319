"""Committed traces of real decode steps, dumps/samples/*.trace.json.gz, in the terms that the documents use of them.

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
PATCHES = " ".join((FOLDER.parents[1] / "docs" / "patches.md").read_text().split())
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
    recorded = header["gemma4_triage"]
    layers, drafted = recorded["model"]["layers"], 0
    if recorded["mtp"]:
        # Each of three drafts goes through the assistant's layers, which have no keys of their own.
        drafted = 3 * recorded["model"]["assistant"]["layers"]
    matches = {use.op: use.matches for use in found.replaceable}
    for op in ("rmsnorm_residual_scalar", "post_attention_norms", "gelu_tanh_mul", "rmsnorm_add", "cross_layer_norm"):
        assert matches[op] >= layers, op
    assert matches["ple_front_end"] == 1
    assert matches["qk_norm_rope"] == layers + drafted
    # In a layer without keys of its own there is a fill, too.
    (op,) = [use for use in found.replaceable if use.op == "qk_norm_rope"]
    assert op.launches == 2 * layers + recorded["model"]["layers_without_kv"] + 3 * drafted


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
        # A read of one value, which waits for the GPU.
        *("gpu_user_annotation", "cpu_op"),
    }


def of_mtp(name):
    found, header = profile_of(FOLDER / f"e4b-mtp-{name}_h200_2026-11-22.trace.json.gz")
    assert header["gemma4_triage"]["mtp"]
    return found


def test_what_is_said_of_a_step_with_mtp():
    shipped, ours = of_mtp("shipped"), of_mtp("v2")
    steps = [f"{one.wall_us.median / 1000:.2f} ms" for one in (shipped, ours)]
    busy = [f"{one.busy_us.median / 1000:.2f}" for one in (shipped, ours)]
    assert f"takes {steps[0]} as shipped and {steps[1]} with `mtp-v2`" in PATCHES
    assert [len(one.cut.chosen) for one in (shipped, ours)] == [3, 3]
    # Nothing is hidden: a copy to pageable memory is what the host of the release waits for.
    (longest,) = [wait for wait in shipped.waits if wait.name == "cudaStreamSynchronize"]
    assert longest.us > 0.5 * shipped.busy_us.median
    assert f"the GPU works for {busy[0]} and {busy[1]} ms of it" in PATCHES


def test_the_picture_is_drawn_from_the_traces(monkeypatch):
    """If this fails, run: python docs/make_mtp_timeline.py."""
    monkeypatch.syspath_prepend(FOLDER.parents[1] / "docs")
    from make_mtp_timeline import PICTURE, draw

    assert PICTURE.read_text() == draw()
