"""Probe request-rows on requests that go on behind a token which ends their answer."""

from types import SimpleNamespace

import pytest

from gemma4_runtime.probes import request_rows
from gemma4_runtime.release.requests import held, stay_of
from gemma4_runtime.rows.seen import seen_of
from gemma4_triage.finding import Confidence
from request_rows_server import Server, named, trapped_by

pytestmark = pytest.mark.releases("0.5.13.post1", "0.5.23")


@pytest.fixture
def server(attach, monkeypatch):
    return Server(monkeypatch, attach("trap", "request-rows", "host-alloc-kernels"))


class TestStops:
    """No request goes on behind a token at which SGLang ends it."""

    def answers(self, server, answer, **asked):
        request = server.world.requests[1]
        wanted = {"ignore_eos": False, "stop_token_ids": {77}} | asked
        for one in server.world.requests:
            one.sampling_params = SimpleNamespace(**wanted)
        self.check(server)
        request.output_ids.extend(answer)
        return request

    def check(self, server):
        request_rows.check_stops(server.scheduler, server.world.requests)

    @pytest.mark.parametrize(("answer", "behind"), [((50, 77, 51, 52), 2), ((50, 77), 0)])
    def test_its_own(self, server, answer, behind):
        begins = len(server.world.requests[1].output_ids)
        request = self.answers(server, answer)
        said = trapped_by(server, lambda: self.check(server))
        assert (said.verdict, said.scalars["structure"], said.site) == (
            *("stop_missed", "finish state"),
            "Scheduler.get_next_batch_to_run",
        )
        assert said.scalars["request_slot"] == held(request).req_pool_idx
        assert (said.scalars["stop_at"], said.scalars["behind"], said.scalars["grown"]) == (
            *(begins + 1, behind),
            len(answer),
        )
        assert 77 not in {bad.value for bad in said.offences}
        finding = named(server)
        assert (finding.rule, finding.confidence) == ("stop-token-missed", Confidence.CERTAIN)
        assert ("not the last of them" in finding.cause) == (behind > 0)

    @pytest.mark.parametrize(
        "more",
        [
            {"eos_token_ids": {77}},
            {"tokenizer": SimpleNamespace(eos_token_id=77, additional_stop_token_ids=None)},
            {"tokenizer": SimpleNamespace(eos_token_id=1, additional_stop_token_ids={77})},
        ],
    )
    def test_the_models_and_the_tokenizers(self, server, more):
        request = self.answers(server, (77, 50), stop_token_ids=None)
        for name, value in more.items():
            setattr(request, name, value)
        assert trapped_by(server, lambda: self.check(server)).verdict == "stop_missed"

    @pytest.mark.parametrize("kind", ["ended", "to end", "asked to go on", "none", "of a search", "looked at"])
    def test_silent_where_it_may_go_on(self, server, kind, monkeypatch):
        asked = {"asked to go on": {"ignore_eos": True}, "none": {"stop_token_ids": None}}.get(kind, {})
        request = self.answers(server, (77, 50), **asked)
        match kind:
            case "ended":
                monkeypatch.setattr(request, "finished", lambda: True, raising=False)
            case "to end":
                request.to_finish = "aborted"
            case "of a search":
                request.beam_group = object()
            case "looked at":
                seen_of(server.scheduler).looked_at[stay_of(request)] = len(request.output_ids)
        self.check(server)
