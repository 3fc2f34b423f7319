"""The torch.compile arm of `bench kernels`: compiled ahead by several processes, loaded by the one that measures."""

import json
import sys
import threading
import time

import pytest
from torch._inductor.runtime.triton_heuristics import CachingAutotuner

from gemma4_repro.kernel_bench import compile_ahead as module
from gemma4_repro.kernel_bench.compile_ahead import compile_ahead
from gemma4_repro.kernel_bench.compiled import DeviceTurn
from gemma4_repro.kernel_bench.plan import MODELS, ModelShape
from gemma4_repro.marked_lines import MARK

E4B = next(model for model in MODELS if model.id == "e4b")
CELLS = [("rmsnorm_add", E4B, tokens) for tokens in (1, 8, 64, 512)]
# Speaks as compile_worker.py does; what happens at a cell is by its tokens.
WORKER = f"""
import json, os, sys, time
ends = json.loads(sys.argv[1])
task = json.load(sys.stdin)
assert task["device"] == "cuda"
assert os.environ["TORCHINDUCTOR_COMPILE_THREADS"] == "1"
# The tests switch Dynamo off for themselves; a bench that inherited it would time eager.
assert os.environ["TORCHDYNAMO_DISABLE"] == "0"
open(os.path.join(os.environ["TORCHINDUCTOR_CACHE_DIR"], "filled"), "a").close()
print("a library's greeting", flush=True)
for op, model, tokens in task["cells"]:
    how = ends.get(str(tokens), "")
    if how == "end":
        raise ValueError("no driver")
    if how == "hang":
        time.sleep(60)
    result = dict(op=op, model=model[0], tokens=tokens, why=how, cached=tokens == 1)
    print({MARK!r} + json.dumps(result), flush=True)
"""


@pytest.fixture
def ahead(monkeypatch, tmp_path):
    """Runs made-up workers; said: what it told the user."""

    def run(ends, cores=4, limit_s=30.0, cells=CELLS):
        monkeypatch.setattr(module.os, "cpu_count", lambda: cores)
        command = (sys.executable, "-c", WORKER, json.dumps(ends))
        return compile_ahead(cells, tmp_path, limit_s, run.said.append, command=command)

    run.said = []
    return run


def test_cells_are_shared_out_and_all_are_compiled(ahead, tmp_path):
    found = ahead({})
    assert found.compiled == {("rmsnorm_add", "e4b", tokens) for tokens in (1, 8, 64, 512)}
    assert (found.missing, found.cached, found.workers) == ({}, 1, 2)
    assert {"compiled": 4, "of": 4, "cached": 1, "workers": 2}.items() <= found.as_dict().items()
    assert ahead.said == ["compiling 4 cells in 2 processes", f"compiled 4 of 4 cells in {found.took_s:.0f} s"]
    assert (tmp_path / "filled").exists()


def test_what_cannot_be_compiled_is_named_and_the_rest_goes_on(ahead):
    found = ahead({"1": "InductorError: no lowering"})
    assert found.missing == {("rmsnorm_add", "e4b", 1): "InductorError: no lowering"}
    assert len(found.compiled) == 3


def test_a_process_that_ends_loses_what_it_had_left(ahead):
    found = ahead({"1": "end"})
    # Of two processes the first has cells 1 and 64.
    assert {key[2] for key in found.missing} == {1, 64}
    assert all("ended with 1: ValueError: no driver" in why for why in found.missing.values())


@pytest.mark.slow
def test_what_takes_too_long_is_given_up(ahead):
    begin = time.monotonic()
    found = ahead({"64": "hang"}, limit_s=3.0)
    assert time.monotonic() - begin < 15
    assert found.missing == {("rmsnorm_add", "e4b", 64): "not compiled in the 3 s for it"}


def test_on_one_core_one_process_does_it_all(ahead):
    assert ahead({}, cores=1).workers == 1


def test_the_device_is_one_process_s_at_a_time(tmp_path):
    inside, most = [], []

    def use():
        turn = DeviceTurn(tmp_path / "turn")
        with turn(), turn():
            inside.append(1)
            most.append(len(inside))
            time.sleep(0.02)
            inside.pop()

    threads = [threading.Thread(target=use) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert most == [1] * 8


def test_inductor_s_timings_wait_for_their_turn(monkeypatch, tmp_path):
    held = DeviceTurn(tmp_path / "turn")
    monkeypatch.setattr(CachingAutotuner, "bench", lambda self, launcher, *arguments, **options: (launcher, held._held))
    held.for_autotuning()
    assert CachingAutotuner.bench(None, "launcher", rep=1) == ("launcher", True)
    assert not held._held


@pytest.mark.slow
def test_a_second_process_loads_what_the_first_has_compiled(monkeypatch, tmp_path):
    """torch.compile itself, for this CPU."""
    # Which vector instructions there are, Inductor finds out by compiling a program and importing torch for each set.
    monkeypatch.setenv("TORCHINDUCTOR_VEC_ISA_OK", "0")
    small = ModelShape("small", 32, 2, 0, 0, 16, 2, 1, 16, 1)
    said = []
    first = compile_ahead([("rmsnorm_add", small, 2)], tmp_path, 240, said.append, device="cpu")
    assert (first.missing, first.cached) == ({}, 0)
    second = compile_ahead([("rmsnorm_add", small, 2)], tmp_path, 240, said.append, device="cpu")
    assert (second.missing, second.cached) == ({}, 1)
