"""`clamp`: how a mark gets from the scheduler's output into replies and into SGLang's request log."""

import asyncio
import logging
from types import SimpleNamespace

import pytest
from sglang.srt.managers import multi_tokenizer_mixin
from sglang.srt.managers.io_struct import GenerateReqInput
from sglang.srt.utils.request_logger import RequestLogger

from gemma4_runtime.degraded import KEY
from gemma4_runtime.fixes import clamp

pytestmark = pytest.mark.releases("0.5.13.post1", "0.5.23")


class State:
    """A state that can be referred to weakly, as SGLang's ReqState can."""


class TestReplies:
    def through_tokenizer(self, output, replies):
        tokenizer = SimpleNamespace(rid_to_state={"a": State(), "b": State()})
        clamp.before_batch_output(tokenizer, output)

        async def original(tokenizer, obj):
            # As SGLang does when a request has finished.
            tokenizer.rid_to_state.pop(obj.rid, None)
            for reply in replies:
                yield reply

        async def collect():
            return [reply async for reply in clamp.around_response(original, tokenizer, SimpleNamespace(rid="b"))]

        return asyncio.run(collect())

    @pytest.mark.parametrize("chunks", [1, 3])
    def test_every_reply_of_the_request_has_it_and_sglang_sees_nothing(self, chunks):
        mark = {"clamped_entries": 1}
        output = SimpleNamespace(rids=["a", "b"], customized_info={KEY: [[], [mark]], "other": [[1], [2]]})
        replies = self.through_tokenizer(output, [{"meta_info": {"id": "b"}} for _ in range(chunks)])
        assert [reply["meta_info"] for reply in replies] == [{"id": "b", KEY: mark}] * chunks
        assert output.customized_info == {"other": [[1], [2]]}

    def test_of_a_request_alone(self):
        output = SimpleNamespace(rids=["b"], customized_info={KEY: [[{"clamped_entries": 4}]]})
        (reply,) = self.through_tokenizer(output, [{"meta_info": {}}])
        assert reply["meta_info"][KEY] == {"clamped_entries": 4}

    @pytest.mark.parametrize(("index", "found"), [(0, {}), (1, {KEY: {"clamped_entries": 4}})])
    def test_of_several_tokenizer_workers(self, index, found):
        """SGLang cuts a batch into an output for each request."""
        whole = SimpleNamespace(customized_info={KEY: [[], [{"clamped_entries": 4}]]})
        cut = multi_tokenizer_mixin._extract_field_by_index(whole, "customized_info", index, check_length=False)
        (reply,) = self.through_tokenizer(SimpleNamespace(rids=["b"], customized_info=cut), [{"meta_info": {}}])
        assert reply["meta_info"] == found

    def test_the_latest_of_a_list_counts(self):
        """A mark holds all that was found so far. SGLang's lists have an entry for each token that is sent."""
        output = SimpleNamespace(rids=["b"], customized_info={KEY: [[{"last_step": 4}, {"last_step": 9}]]})
        (reply,) = self.through_tokenizer(output, [{"meta_info": {}}])
        assert reply["meta_info"][KEY] == {"last_step": 9}

    @pytest.mark.parametrize(("rid", "marked"), [("a", False), ("b", True)])
    def test_sglangs_request_log_has_it(self, attach, caplog, rid, marked):
        attach("off", "clamp")
        states = {"a": State(), "b": State()}
        output = SimpleNamespace(rids=["a", "b"], customized_info={KEY: [[], [{"clamped_entries": 4}]]})
        clamp.before_batch_output(SimpleNamespace(rid_to_state=dict(states)), output)
        asked, out = GenerateReqInput(rid=rid, text="x"), {"text": "y", "meta_info": {"id": rid}}
        made = RequestLogger(True, 1, "text", ["stdout"])
        with caplog.at_level(logging.INFO):
            made.log_finished_request(asked, out)
        assert ("'clamped_entries': 4" in caplog.text) is marked
        # What SGLang's exporter is given next.
        assert (KEY in out["meta_info"]) is marked

    def test_a_reply_that_nobody_waits_for_keeps_nothing(self):
        clamp.before_batch_output(
            SimpleNamespace(rid_to_state={"c": State()}),
            SimpleNamespace(rids=["c"], customized_info={KEY: [[{"clamped_entries": 4}]]}),
        )
        clamp.before_finished_log(None, None, out := {"meta_info": {"id": "c"}})
        assert KEY not in out["meta_info"]

    @pytest.mark.parametrize("info", [None, {}, {KEY: [[], []]}])
    def test_unmarked(self, info):
        output = SimpleNamespace(rids=["a", "b"], customized_info=info)
        (reply,) = self.through_tokenizer(output, [{"meta_info": {}}])
        assert reply["meta_info"] == {}
