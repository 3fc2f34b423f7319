"""Servers that stand without an exception: vLLM's processes that wait, and requests whose grammar nobody takes on."""

import pytest

from gemma4_triage.finding import Confidence
from made_logs import MADE, decode, found_in, only, prefill

WAITS = MADE["workers-stand"]
SUMS = (
    "(Worker_TP0 pid=2) INFO 07-06 20:44:20 [b12x_allreduce.py:188] b12x PCIe oneshot allreduce enabled: world_size=2\n"
)
SERVES = "(APIServer pid=1) INFO 07-06 20:50:00 [loggers.py:259] Engine 000: Avg prompt throughput: 1.0 tokens/s, Avg "
SERVES += "generation throughput: 9.0 tokens/s, Running: 1 reqs, Waiting: 0 reqs, GPU KV cache usage: 0.1%\n"
GAUGES = MADE["grammar-waits"][2:]


def test_a_sum_over_gpus_that_was_switched_on_leads():
    finding = only([SUMS, *WAITS])
    assert (finding.rule, finding.confidence) == ("workers-stand", Confidence.LIKELY)
    assert finding.advice[0].startswith("without sums from GPU to GPU: --disable-custom-all-reduce")


def test_without_one_stacks_come_first():
    finding = only(WAITS)
    assert finding.confidence is Confidence.POSSIBLE
    assert finding.advice[0].startswith("py-spy dump")


@pytest.mark.parametrize("lines", [WAITS[:1], [*WAITS, SERVES], [*WAITS, "INFO:     Application startup complete.\n"]])
def test_a_wait_that_ended_is_none(lines):
    assert found_in(lines) == ()


def test_a_grammar_that_a_loop_of_stages_never_takes_on():
    start = "$ python3 -m sglang.launch_server --model-path m --pp-size 2\n"
    finding = only([start, prefill(1), decode(2), *GAUGES])
    assert (finding.rule, finding.confidence) == ("grammar-waits", Confidence.LIKELY)
    assert "--pp-size 1" in finding.advice[0]


@pytest.mark.parametrize("gauges", [[GAUGES[0]], [GAUGES[0], GAUGES[1].replace("1.0", "0.0")],
                                    [GAUGES[0].replace(" 0.0", " 3.0"), GAUGES[1]]])  # fmt: skip
def test_none_that_waits_or_some_that_run(gauges):
    assert found_in([prefill(1), decode(2), *gauges]) == ()
