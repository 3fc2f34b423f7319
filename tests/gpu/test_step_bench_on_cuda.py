"""`bench step` on a GPU at a size that takes a minute: every arm is right, timed and counted."""

import json

import pytest

from gemma4_repro.step_bench.plan import ARMS, StepPlan

# What runs on a GPU alone has run with this release alone.
pytestmark = [pytest.mark.gpu, pytest.mark.releases("0.5.13.post1")]
PLAN = StepPlan(("e4b",), (1, 4), 6, tuple(ARMS), 5, 300.0)


@pytest.mark.parametrize("model", ["e4b", "26b"])
def test_six_layers(cli, model):
    code, out, err = cli("bench", "step", "--json", "--model", model, "--layers", 6, "--batch", "1,4", "--rounds", 5)
    document = json.loads(out)
    assert code in (0, 1), err
    assert (document["wrong"], document["lost"], document["partial"]) == ([], [], "")
    rows = {(row["batch"], row["arm"]): row for row in document["rows"]}
    arms = PLAN.arms_of(model)
    assert set(rows) == {(batch, arm) for batch in (1, 4) for arm in arms}
    for row in rows.values():
        assert row["step_us"]["n"] == 5
        assert 0.1 < row["answers"]["logits_std"] < 30
    targets = {target["target"]: target["status"] for target in document["targets"]}
    assert targets["as-shipped"] == "met"
    for batch in (1, 4):
        assert rows[batch, "none"]["answers"]["bit_equal"]
        assert rows[batch, "shipped"]["answers"]["bit_equal"]
        assert rows[batch, "all"]["kernels"] < rows[batch, "none"]["kernels"]
    # One kernel in the place of another, and fewer of them where an op takes several together.
    for arm in arms[4:]:
        assert rows[1, arm]["kernels"] <= rows[1, "none"]["kernels"]
        assert rows[1, arm]["kernels_against_none"]
