"""What SGLang makes of a step of several tokens under spec v2, with the three fixes and without them.

Requests, batches, the result processor and the grammar are SGLang's own; pools, metrics and streams are left out.
"""

from array import array
from types import SimpleNamespace

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from llguidance import LLMatcher, LLTokenizer
from sglang.srt.constrained.llguidance_backend import GuidanceGrammar
from sglang.srt.constrained.xgrammar_backend import XGrammarGrammar
from sglang.srt.managers.schedule_batch import Req
from sglang.srt.managers.scheduler_components import batch_result_processor
from sglang.srt.managers.scheduler_components.batch_result_processor import SchedulerBatchResultProcessor
from sglang.srt.managers.utils import GenerationBatchResult
from sglang.srt.sampling.sampling_params import SamplingParams
from sglang.srt.utils.hf_transformers_utils import get_tokenizer
from xgrammar import GrammarCompiler, GrammarMatcher, TokenizerInfo

import mtp_batches
from gemma4_repro.toys.language import EOS, token_id, vocabulary
from gemma4_repro.toys.locate import toy_path

# 0.5.18 and later judge each token of a step themselves.
pytestmark = pytest.mark.releases("0.5.13.post1")

TOKENIZER = get_tokenizer(str(toy_path("toy-e4b")))
WORDS = vocabulary()
PLAIN = range(200, 216)
END = token_id(EOS)
THINK_END = PLAIN[-1]
STRIDE = 4


def request(*, said=(), **sampling) -> Req:
    params = SamplingParams(**({"temperature": 0, "max_new_tokens": 32} | sampling))
    params.normalize(TOKENIZER)
    made = Req(
        rid="r", origin_input_text="", origin_input_ids=array("q", [2, 3]), sampling_params=params, eos_token_ids={END}
    )
    made.tokenizer = TOKENIZER
    made.vocab_size = len(WORDS)
    made.output_ids.extend(said)
    made.require_reasoning = True
    made.update_reasoning_tokens(list(said), THINK_END)
    return made


def in_one(made: Req, window) -> Req:
    made.output_ids.extend(window)
    made.update_reasoning_tokens(list(window), THINK_END)
    made.update_finish_state(len(window))
    return made


def one_by_one(made: Req, window) -> Req:
    """Do as V1's verification does: tokens after the end are never seen."""
    for token in window:
        made.output_ids.append(token)
        made.update_reasoning_tokens(token, THINK_END)
        made.update_finish_state()
        if made.finished():
            break
    return made


def answer(made: Req):
    reason = made.finished_reason.to_json() if made.finished() else None
    return list(made.output_ids_through_stop), reason


def test_a_stop_string_at_the_front_of_a_window(attach):
    window = [200, 201, 202, 203]
    sampling = {"stop": [WORDS[200]]}
    assert not in_one(request(said=(210,), **sampling), window).finished(), "the tail of two tokens does not reach it"
    attach("off", "spec-v2-stop-window")
    made = in_one(request(said=(210,), **sampling), window)
    assert list(made.output_ids_through_stop) == [210, 200]
    assert list(made.output_ids) == [210, *window], "what the KV holds stays on record"


def test_what_follows_a_stop_string_is_not_answered(attach):
    sampling = {"stop": [WORDS[202]]}
    over = in_one(request(**sampling), [200, 201, 202, 203])
    assert over.finished()
    assert len(over.output_ids_through_stop) == 4
    attach("off", "spec-v2-stop-window")
    assert answer(in_one(request(**sampling), [200, 201, 202, 203]))[0] == [200, 201, 202]


def test_an_end_token_beside_the_length_limit(attach):
    window = [200, END, 201, 202]
    without = answer(in_one(request(max_new_tokens=4), window))
    assert without[1]["type"] == "length"
    attach("off", "spec-v2-stop-window")
    assert answer(in_one(request(max_new_tokens=4), window)) == ([200, END], {"type": "stop", "matched": END})


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    said=st.lists(st.sampled_from(PLAIN), max_size=5),
    window=st.lists(st.sampled_from([*PLAIN, END]), min_size=1, max_size=5),
    stop=st.lists(st.sampled_from(PLAIN), min_size=1, max_size=2),
    token=st.sampled_from(PLAIN),
    room=st.integers(1, 7),
    kinds=st.sets(st.sampled_from(["stop", "token", "ignore_eos"])),
)
def test_a_window_ends_where_single_tokens_would(spec_v2_fixes, said, window, stop, token, room, kinds):
    sampling = {"max_new_tokens": len(said) + room}
    if "stop" in kinds:
        sampling["stop"] = [TOKENIZER.decode(stop)]
    if "token" in kinds:
        sampling["stop_token_ids"] = [token]
    if "ignore_eos" in kinds:
        sampling["ignore_eos"] = True
    whole = in_one(request(said=said, **sampling), window)
    alone = one_by_one(request(said=said, **sampling), window)
    assert answer(whole) == answer(alone)
    assert list(whole.output_ids) == [*said, *window]
    assert whole.reasoning_tokens == alone.reasoning_tokens


@pytest.fixture
def spec_v2_fixes(attach):
    attach("off", "spec-v2-stop-window")


@pytest.fixture
def process(monkeypatch):
    """Return a function of (requests, windows, hidden=None) to what SGLang aborts on a step's result in spec v2."""
    monkeypatch.setattr(batch_result_processor, "release_kv_cache", lambda *args, **kwargs: None)
    monkeypatch.setattr(batch_result_processor, "get_global_server_args", lambda: ARGUMENTS)
    monkeypatch.setattr(batch_result_processor, "get_global_experts_capturer", lambda: None)
    monkeypatch.setattr(batch_result_processor, "get_global_indexer_capturer", lambda: None)
    monkeypatch.setattr("sglang.srt.server_args._global_server_args", mtp_batches.ARGUMENTS)

    def run(requests, windows, hidden=None):
        aborted: list[str] = []
        batch = mtp_batches.batch(requests, None)
        batch.return_logprob = False
        flat = [token for window in windows for token in [*window, *[0] * (STRIDE - len(window))]]
        for one in requests:
            one.time_stats = ANYTHING
        result = GenerationBatchResult(
            logits_output=SimpleNamespace(hidden_states=hidden, customized_info=None),
            next_token_ids=torch.tensor(flat),
            accept_lens=torch.tensor([len(window) for window in windows]),
            speculative_num_draft_tokens=STRIDE,
        )
        processor(aborted).process_batch_result_decode(batch, result)
        return aborted

    return run


ARGUMENTS = SimpleNamespace(
    enable_metrics=False,
    disaggregation_decode_enable_offload_kvcache=False,
    enable_hisparse=False,
    enable_mamba_extra_buffer_lazy=lambda: False,
)


class Anything:
    """Metrics and streams, which take whatever they are told."""

    num_generated_tokens = forward_ct_decode = 0

    def __getattr__(self, name):
        return lambda *args, **kwargs: None


ANYTHING = Anything()


def processor(aborted) -> SchedulerBatchResultProcessor:
    given = dict.fromkeys(SchedulerBatchResultProcessor.__dataclass_fields__, ANYTHING)
    given |= {
        "enable_overlap": True,
        "enable_overlap_mlx": False,
        "server_args": ARGUMENTS,
        "model_config": SimpleNamespace(think_end_id=None),
        "abort_request": lambda order: aborted.append(order.rid),
    }
    return SchedulerBatchResultProcessor(**given)


BYTES = LLTokenizer("byte")
A, B = b"ab"


def with_grammar(pattern, **sampling) -> Req:
    """Return a request whose tokens are bytes."""
    made = request(**sampling)
    made.eos_token_ids = {BYTES.eos_token}
    made.grammar = GuidanceGrammar(BYTES, LLMatcher.grammar_from_regex(pattern))
    return made


def test_hidden_states_are_those_of_a_requests_own_tokens(attach, process):
    hidden = torch.arange(2 * STRIDE, dtype=torch.float32)[:, None]

    def states():
        pair = [request(max_new_tokens=32), request(max_new_tokens=2)]
        for one in pair:
            one.return_hidden_states = True
        process(pair, [[200, 201, 202], [203, 204, 205]], hidden)
        return [one.hidden_states for one in pair]

    attach("off", "mtp-v2", "spec-v2-stop-window")
    assert states() == [[[0.0]], [[1.0]]], "a row of the first request's for the second"
    attach("off", "mtp-v2", "spec-v2-stop-window", "spec-v2-hidden-rows")
    assert states() == [[[0.0], [1.0], [2.0]], [[4.0], [5.0]]]


def test_a_grammar_is_not_fed_what_follows_its_end(attach, process):
    """Without the fix its error aborts a request that has ended well."""
    window = [A, BYTES.eos_token, B]
    attach("off", "mtp-v2", "spec-v2-stop-window")
    assert process([with_grammar("ab*")], [window]) == ["r"]
    attach("off", "mtp-v2", "spec-v2-stop-window", "spec-v2-grammar-end")
    made = with_grammar("ab*")
    assert process([made], [window]) == []
    assert answer(made) == (window[:2], {"type": "stop", "matched": BYTES.eos_token})


def test_a_request_ends_with_its_grammar_and_not_a_step_later(attach, process):
    window = [A, BYTES.eos_token, B]
    attach("off", "mtp-v2", "spec-v2-grammar-end")
    made = with_grammar("a", ignore_eos=True)
    process([made], [window])
    assert answer(made) == (window[:2], {"type": "stop", "matched": BYTES.eos_token})
    attach("off", "mtp-v2")
    late = with_grammar("a", ignore_eos=True)
    process([late], [window])
    assert not late.finished()


def test_a_grammar_is_fed_each_token_once(attach, process):
    attach("off", "mtp-v2", "spec-v2-grammar-end")
    made = with_grammar("abab")
    assert process([made], [[A, B]]) == []
    assert process([made], [[A]]) == []
    assert process([made], [[B, BYTES.eos_token]]) == []
    assert answer(made)[0] == [A, B, A, B, BYTES.eos_token]


def test_a_token_that_the_grammar_refuses_aborts_as_before(attach, process):
    window = [A, A, B]
    attach("off", "mtp-v2", "spec-v2-grammar-end")
    made = with_grammar("ab")
    assert process([made], [window]) == ["r"]
    assert not made.finished()
    assert list(made.output_ids) == window


def test_a_refused_token_is_not_taken_on_a_second_reading_of_its_step(attach, process):
    """The grammar has had `a` of `aab`. The step again from its start would be `ab`, which is the rest of it."""
    attach("off", "mtp-v2", "spec-v2-grammar-end")
    made = with_grammar("unused")
    tokens = TokenizerInfo([bytes([byte]) for byte in range(256)] + [b"</s>"], stop_token_ids=[256])
    compiled = GrammarCompiler(tokens).compile_regex("aab")
    made.grammar = XGrammarGrammar(GrammarMatcher(compiled), 257, compiled, None)
    assert process([made], [[A, B]]) == ["r"]


def test_grammars_of_other_steps_are_sglangs_to_feed(attach, process):
    attach("off", "mtp-v2", "spec-v2-grammar-end")
    ended, broken = with_grammar("ab*"), with_grammar("ab*")
    process([ended], [[A, BYTES.eos_token]])
    broken.grammar = object()
    with pytest.raises(AttributeError):
        process([broken], [[A]])
    made = with_grammar("ab")
    made.output_ids.append(A)
    made.update_finish_state(1)
    made.grammar.accept_token(A)
