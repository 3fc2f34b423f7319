"""Rows and targets of `bench kernels` from made-up samples."""

from gemma4_repro.kernel_bench.plan import KernelPlan
from gemma4_repro.kernel_bench.rows import build_rows
from gemma4_repro.kernel_bench.run_process import Measured
from gemma4_repro.kernel_bench.targets import judge_targets


def sample(op, tokens, arm, *us, model="26b"):
    return {"op": op, "model": model, "tokens": tokens, "arm": arm, "us": list(us), "calls": 30}


def plan(*ops, tokens=(1, 4096)):
    return KernelPlan(ops, ("26b",), tokens, ("ours",), 5, 60.0)


def targets(plan, *samples):
    return {target["target"]: target for target in judge_targets(plan, build_rows(samples, "GPU"))}


def test_a_row_has_its_spread_and_its_ratios_by_round():
    rows = build_rows(
        [
            sample("triple_rmsnorm", 4096, "ours", 10.0, 20.0, 40.0),
            sample("triple_rmsnorm", 4096, "copy", 9.0, 18.0, 38.0),
            sample("triple_rmsnorm", 4096, "sglang", 20.0, 50.0, 60.0),
            sample("triple_rmsnorm", 1, "empty", 1.0),
        ],
        "GPU",
    )
    ours = rows[0]
    assert (ours["us"]["median"], ours["us"]["n"], ours["device"], ours["calls"]) == (20.0, 3, "GPU", 30)
    assert (ours["copy_share"], ours["speedup_over_sglang"]) == (0.9, 2.0)
    # Another cell's empty kernel says nothing here.
    assert ours["empty_ratio"] is None
    assert "copy_share" not in rows[1]


def test_targets_are_judged_by_the_worst_cell():
    good = [
        sample("triple_rmsnorm", 1, "ours", 1.1),
        sample("triple_rmsnorm", 1, "empty", 1.0),
        sample("triple_rmsnorm", 4096, "ours", 10.0),
        sample("triple_rmsnorm", 4096, "copy", 9.0),
    ]
    found = targets(plan("triple_rmsnorm"), *good)
    statuses = {id: target["status"] for id, target in found.items()}
    # No rival was measured, so nothing can be said of rivals.
    assert statuses == {"copy-bandwidth": "met", "launch-bound": "met", "peers": "not measured"}
    slow = [*good[2:], sample("triple_rmsnorm", 1, "ours", 1.2), good[1]]
    missed = targets(plan("triple_rmsnorm"), *slow)["launch-bound"]
    assert (missed["status"], missed["missed_in"]) == ("missed", 1)
    assert missed["worst"] == {"op": "triple_rmsnorm", "model": "26b", "tokens": 1, "value": 1.2}


def test_a_target_whose_cells_are_not_all_there_is_not_met():
    found = targets(plan("triple_rmsnorm", tokens=(4096, 32768)), sample("triple_rmsnorm", 4096, "ours", 10.0))
    assert found["copy-bandwidth"]["status"] == "not measured"
    found = targets(
        plan("triple_rmsnorm", tokens=(4096, 32768)),
        sample("triple_rmsnorm", 4096, "ours", 10.0),
        sample("triple_rmsnorm", 4096, "copy", 9.5),
    )
    assert (found["copy-bandwidth"]["status"], found["copy-bandwidth"]["measured"]) == ("not measured", 1)


def test_routing_has_to_beat_the_release_at_every_size():
    samples = [sample("routing", tokens, "ours", 2.0) for tokens in (1, 4096)]
    samples += [sample("routing", 1, "sglang", 2.1), sample("routing", 4096, "sglang", 1.9)]
    found = targets(plan("routing"), *samples)
    assert found["routing"]["status"] == "missed"
    assert found["routing"]["worst"]["tokens"] == 4096
    # Its target is the release's kernel and not the copy.
    assert "copy-bandwidth" not in found


def rivals(**times):
    return [sample("triple_rmsnorm", 4096, arm, *us) for arm, us in times.items()]


def test_a_rival_is_faster_only_by_more_than_noise():
    wanted = plan("triple_rmsnorm", tokens=(4096,))
    noisy = {"sglang": (20.0, 21.0), "eager": (90.0, 91.0), "compile": (9.0, 11.0)}
    found = targets(wanted, *rivals(ours=(10.0, 10.4), **noisy))["peers"]
    assert (found["status"], found["measured"]) == ("met", 1)
    found = targets(wanted, *rivals(ours=(11.0, 11.4), **noisy))["peers"]
    assert (found["status"], found["worst"]["value"]) == ("missed", round(11.04 / 10.8, 4))


def test_a_missing_rival_leaves_the_verdict_open_unless_another_is_faster():
    wanted = plan("triple_rmsnorm", tokens=(4096,))
    some = {"sglang": (20.0, 21.0), "eager": (90.0, 91.0)}
    assert targets(wanted, *rivals(ours=(10.0, 10.4), **some))["peers"]["status"] == "not measured"
    assert targets(wanted, *rivals(ours=(30.0, 31.0), **some))["peers"]["status"] == "missed"
    # A part of the op does less than the op.
    parts = {"compile": (12.0, 12.0), "flashinfer": (1.0, 1.0), "sgl-kernel": (1.0, 1.0)}
    assert targets(wanted, *rivals(ours=(10.0, 10.4), **some, **parts))["peers"]["status"] == "met"


def test_results_of_the_process_are_sorted_by_kind():
    measured = Measured()
    for result in [
        {"kind": "about", "versions": {"torch": "2"}},
        {"kind": "cell", "op": "routing"},
        {"kind": "samples", "op": "routing", "us": [1.0]},
        {"kind": "lost", "why": "no"},
        {"kind": "partial", "why": "out of time"},
    ]:
        measured.take(result)
    assert (measured.about, measured.partial) == ({"versions": {"torch": "2"}}, "out of time")
    assert (len(measured.samples), len(measured.lost), measured.launches) == (1, 1, [])
