"""Probe request-rows on sampling parameters: silent where each row has its request's, and it says whose it has."""

from types import SimpleNamespace

import pytest
import torch
from sglang.srt.sampling.sampling_params import SamplingParams

from gemma4_runtime.release.requests import held
from gemma4_triage.finding import Confidence
from request_rows_server import Server, named, trapped_by

pytestmark = pytest.mark.releases("0.5.13.post1", "0.5.23")

ASKED = [
    {"temperature": 0.8, "top_p": 0.9, "top_k": 20, "min_p": 0.1},
    {"temperature": 0.0},
    {"temperature": 1.5, "top_p": 0.5},
]


class Given:
    """What SamplingBatchInfo has of a batch, made as it makes it."""

    def __init__(self, requests):
        asked = [one.sampling_params for one in requests]
        self.temperatures = torch.tensor([one.temperature for one in asked]).view(-1, 1)
        self.top_ps = torch.tensor([one.top_p for one in asked])
        self.top_ks = torch.tensor([one.top_k for one in asked], dtype=torch.int32)
        self.min_ps = torch.tensor([float(one.min_p) for one in asked])
        self.is_all_greedy = all(one.top_k <= 1 for one in asked)
        self.need_top_p_sampling = any(one.top_p != 1.0 for one in asked)
        self.need_top_k_sampling = any(one.top_k != 1 << 30 for one in asked)
        self.need_min_p_sampling = any(one.min_p > 0 for one in asked)


@pytest.fixture
def server(attach, monkeypatch):
    server = Server(monkeypatch, attach("trap", "request-rows", "host-alloc-kernels"))
    for request, asked in zip(server.world.requests, ASKED, strict=True):
        request.sampling_params = SamplingParams(**asked)
        request.sampling_params.normalize(None)
    return server


def step(server, change=lambda given: None):
    def changed(made):
        made.sampling_info = Given(server.world.requests)
        change(made.sampling_info)

    server.forward(changed)


def slots(server):
    return [held(request).req_pool_idx for request in server.world.requests]


def test_each_row_has_its_own(server):
    for _ in range(3):
        step(server)


def test_one_that_nobody_asked_for(server):
    step(server)

    def heat(given):
        given.temperatures[0] = 32.0

    said = trapped_by(server, lambda: step(server, heat))
    assert (said.verdict, said.scalars["request_slot"], said.scalars["parameter"]) == (
        *("sampling_differs", slots(server)[0]),
        "temperature",
    )
    finding = named(server)
    assert (finding.rule, finding.confidence) == ("sampling-differs", Confidence.CERTAIN)
    assert "asked for temperature 0.8, and its batch has 32.0, which nobody asked for" in finding.cause


def test_in_another_order_than_the_requests(server):
    def turn(given):
        for name in ("temperatures", "top_ps", "top_ks", "min_ps"):
            setattr(given, name, getattr(given, name).roll(1, 0))

    said = trapped_by(server, lambda: step(server, turn))
    assert (said.scalars["defect"], said.scalars["rows_wrong"]) == ("swapped", 3)
    assert "merge_batch and filter_batch" in named(server).cause


def test_another_requests(server):
    def copy(given):
        given.top_ps[0] = given.top_ps[2]

    trapped_by(server, lambda: step(server, copy))
    assert f"which is what the request in slot {slots(server)[2]} asked for" in named(server).cause


def test_what_a_request_asks_for_is_written_over_as_it_runs(server):
    step(server)
    server.world.requests[2].sampling_params.temperature = 4.0
    trapped_by(server, lambda: step(server))
    assert "written over while it ran" in named(server).cause


@pytest.mark.parametrize(
    ("flag", "value"),
    [
        ("is_all_greedy", True),
        ("need_top_p_sampling", False),
        ("need_top_k_sampling", False),
        ("need_min_p_sampling", False),
    ],
)
def test_a_flag_that_leaves_out_what_a_request_asked_for(server, flag, value):
    trapped_by(server, lambda: step(server, lambda given: setattr(given, flag, value)))
    finding = named(server)
    assert (finding.rule, f"{flag} = {value}" in finding.cause) == ("sampling-differs", True)


def test_flags_that_ask_for_more_than_is_needed(server):
    """A batch keeps them as requests leave it."""
    for request in server.world.requests:
        request.sampling_params = SamplingParams(temperature=0.0)
        request.sampling_params.normalize(None)

    def keep(given):
        given.is_all_greedy = False
        given.need_top_p_sampling = given.need_top_k_sampling = given.need_min_p_sampling = True

    step(server, keep)


def test_a_batch_of_another_number_of_rows_is_not_asked(server):
    def shorten(given):
        given.temperatures = given.temperatures[:2]

    step(server, shorten)


VOCABULARY = 200


def bias(server, *of_rows):
    """Return a tensor of logit biases whose rows are those of other requests' dictionaries."""
    added = torch.zeros(len(server.world.requests), VOCABULARY)
    for row, given in enumerate(of_rows):
        for token, value in given.items():
            added[row, int(token)] = value
    return added


def test_biases_of_single_tokens(server):
    mine, others = {"5": 4.0, "7": -100.0}, {"9": 1.5}
    for request, asked in zip(server.world.requests, (mine, None, others), strict=True):
        request.sampling_params.logit_bias = asked
    step(server, lambda given: setattr(given, "logit_bias", bias(server, mine, {}, others)))
    said = trapped_by(
        server, lambda: step(server, lambda given: setattr(given, "logit_bias", bias(server, {}, others, mine)))
    )
    assert (said.scalars["parameter"], said.scalars["rows_wrong"]) == ("logit_bias", 3)
    finding = named(server)
    assert (finding.rule, "SamplingBatchInfo.merge_batch" in finding.cause) == ("sampling-differs", True)


@pytest.mark.parametrize("summed", [True, False])
def test_penalties_of_anothers_tokens(server, summed):
    def add(tokens_of):
        def change(given):
            added = torch.zeros(len(server.world.requests), VOCABULARY)
            for row, other in enumerate(tokens_of):
                added[row, list(server.world.requests[other].output_ids)] = 1.0
            if summed:
                given.acc_additive_penalties = added
            else:
                counted = SimpleNamespace(cumulated_frequency_penalties=added)
                given.penalizer_orchestrator = SimpleNamespace(penalizers={object: counted})

        return change

    for number, request in enumerate(server.world.requests):
        request.output_ids.extend([20 + number, 30 + number])
    step(server, add((0, 1, 2)))
    trapped_by(server, lambda: step(server, add((1, 1, 2))))
    finding = named(server)
    assert f"penalties of 2 tokens that are not its own, but those that the request in slot {slots(server)[1]} has" in (
        finding.cause
    )
