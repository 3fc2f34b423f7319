"""Fixes: repairs of defects that the release has."""

from __future__ import annotations

from gemma4_runtime.catalog.shared_hooks import PAGE_HOOKS
from gemma4_runtime.patch import NO_UPSTREAM, SEED, About, Edit, Hook, How, Kind, Patch
from gemma4_runtime.releases import BASE

_AT = "gemma4_runtime.fixes"
# SGLang's lines are compared without their indentation. What follows makes the run of them the only one.
_HIDDEN = "if req.return_hidden_states and logits_output.hidden_states is not None:\n"
_ONE_ROW = "    req.hidden_states.append(\n        logits_output.hidden_states[i].cpu().clone().tolist()\n    )\n\n"
_OWN_ROWS = (
    "    from gemma4_runtime.mtp_v2.hidden_rows import append_rows\n"
    "    append_rows(req, batch, result, i, next_token_id)\n\n"
)
_GRAMMAR = "if req.grammar is not None:\n    self._apply_decode_grammar("

FIXES: tuple[Patch, ...] = (
    Patch(
        id="swa-state-swap",
        kind=Kind.FIX,
        title="draft SWA state follows the KV pool on every leaf, eager and in graphs; hybrid backend unwrapped",
        origin=SEED,
        upstream="SWA state resolved from the allocator in 0.5.13; the hybrid crash is open up to 0.5.23",
        until="0.5.23",
        default=True,
        about=About(
            why="SGLang swaps the pool of one backend object when a draft reads the target's KV. The SWA state of that "
            "object and the children of a hybrid backend stay behind: sliding layers get page ids of the full pool, or "
            "a target's layer id indexes the assistant's dummy pool.",
            eligibility="FROZEN_KV_MTP drafts: on each swap, eager and while graphs are captured, on every leaf of the "
            "backend. Without a draft nothing calls it.",
            fallback="A model that is not bound yet is SGLang's own error. A target without a sliding window leaves "
            "the draft without SWA state, as it should be.",
            proof=(
                "tests/unit/test_fix_swa_state_swap.py",
                "tests/unit/test_draft_swa_state.py::test_on_the_leaf_of_a_hybrid",
                "tests/engine/test_repro_e4b_trtllm.py",
                "tests/engine/test_geometry_live.py::test_with_the_fix_a_hybrid_draft_backend_is_silent",
                "tests/gpu/test_graph_guards.py::test_the_fix_holds_under_graphs_with_the_fault_injected",
                "tests/gpu/test_graph_guards.py::test_hybrid_with_the_fix_serves_and_is_clean",
            ),
        ),
        attachments=(
            Hook("mtp.target_view", How.AROUND, f"{_AT}.swa_state_swap:around_view"),
            Hook("mtp.pool_view", How.AROUND, f"{_AT}.swa_state_swap:around_view"),
            Hook("mtp.graph_runner_init", How.AROUND, f"{_AT}.swa_state_swap:around_graph_runner_init"),
            Hook("mtp.init_draft_backend", How.AFTER, f"{_AT}.swa_state_swap:unwrap_hybrid"),
        ),
    ),
    Patch(
        id="eager-out-cache-loc",
        kind=Kind.FIX,
        title="a draft batch carries no out_cache_loc into eager input copies",
        origin='"size of tensor a (29) must match the size of tensor b (30)" with CUDA graphs off',
        upstream="fixed in 0.5.15",
        absorbed="0.5.15, speculative/frozen_kv_mtp_worker_v2.py",
        default=True,
        about=About(
            why="With CUDA graphs off, verify leaves out_cache_loc sized to the accepted tokens. The draft's batch "
            "inherits it, and the eager copy of inputs dies of two sizes that differ.",
            eligibility="Every draft batch of FROZEN_KV_MTP, graphs or not.",
            fallback="Under attention data parallelism's padding the batch gets zeros of its own size instead of none.",
            proof=(
                "tests/unit/test_fix_eager_out_cache_loc.py",
                "tests/gpu/test_graph_guards.py::test_eager_drafts_need_the_out_cache_loc_fix",
                "tests/gpu/test_graph_guards.py::test_eager_with_both_fixes",
            ),
        ),
        attachments=(Hook("mtp.expand_for_topk", How.AFTER, f"{_AT}.eager_out_cache_loc:drop_out_cache_loc"),),
    ),
    Patch(
        id="spec-info-guards",
        kind=Kind.FIX,
        title="a batch of finished requests is merged and filtered without a draft input; others are refused",
        origin="SGLang 26859",
        upstream="the empty draft input in 0.5.13, but not under data-parallel attention; V1 is gone since 0.5.14",
        absorbed="0.5.14, the V1 worker that left a batch without a draft input is gone (managers/scheduler.py)",
        default=True,
        about=About(
            why="A step of MTP that ends all its requests may leave its own verify state on the batch. It cannot be "
            "merged or filtered, so the next prefill takes the scheduler down: no attribute 'merge_batch'.",
            eligibility="FROZEN_KV_MTP and EAGLE: a merge of a batch whose spec_info is not a draft input, and a "
            "filter of one by which some requests leave and others stay.",
            fallback="Where requests that are not finished lack a draft input, UnusableSpecInfo names them and the "
            "reason before anything is changed: their KV lengths cannot be relied on.",
            proof=(
                "tests/unit/test_fix_spec_info_guards.py",
                "tests/engine/test_repro_mtp.py",
            ),
        ),
        attachments=(
            Hook("batch.merge", How.BEFORE, f"{_AT}.spec_info_guards:before_merge"),
            Hook("batch.filter", How.BEFORE, f"{_AT}.spec_info_guards:before_filter"),
        ),
    ),
    Patch(
        id="penalizer-none-safety",
        kind=Kind.FIX,
        title="MTP drafts and verifies where sampling_info or its penalizers are None, or says why it cannot",
        origin="SGLang pull requests for Gemma-4 with MTP",
        upstream="its code is gone since 0.5.14, with the V1 worker",
        absorbed="0.5.14, the V1 worker is gone; speculative/eagle_utils.py applies the summed penalties",
        default=True,
        about=About(
            why="FROZEN_KV_MTP's draft and verify read sampling_info and its penalty orchestrator unconditionally, and "
            "a batch that was copied for a forward has neither.",
            eligibility="Every draft and verify of FROZEN_KV_MTP.",
            fallback="Penalties that the copy has summed are applied. Where a request has penalties and nothing holds "
            "them, PenaltiesLost names it: its tokens would be other ones.",
            proof=(
                "tests/unit/test_fix_penalizer_none_safety.py",
                "tests/engine/test_penalizer_none_safety_live.py",
            ),
        ),
        attachments=(
            Hook("mtp.draft", How.AROUND, f"{_AT}.penalizer_none_safety:around_step"),
            Hook("mtp.verify", How.AROUND, f"{_AT}.penalizer_none_safety:around_step"),
        ),
    ),
    Patch(
        id="unsent-requests",
        kind=Kind.FIX,
        title="a request that never reached the scheduler is forgotten, so that SIGTERM ends a used server",
        origin="a chat with n=2, or a prompt that is refused as too long, and SIGTERM waits for ever",
        upstream="fixed in 0.5.23",
        absorbed="0.5.23 or earlier, managers/tokenizer_manager.py releases the entries of what was not sent",
        default=True,
        about=About(
            why="The tokenizer manager makes an entry for every id of a request up front, and the scheduler's answer "
            "takes it away. What is never sent gets no answer, and a server that drains waits until there is no entry.",
            eligibility="Every request that has been answered, refused or given up, for those of its ids that were "
            "made for it and not sent to the scheduler.",
            fallback="An id that was sent is left to the scheduler's answer, and an id of another request to that one.",
            proof=("tests/unit/test_fix_unsent_requests.py", "tests/engine/test_unsent_requests_live.py"),
        ),
        attachments=(Hook("tokenizer.generate", How.AROUND, f"{_AT}.unsent_requests:around_generate"),),
    ),
    Patch(
        id="swa-window-width",
        kind=Kind.FIX,
        title="sliding layers see W keys as in transformers, not W+1 (changes shipped outputs past the window)",
        # Alone it puts trtllm_mha right, and Triton's extend and verify; a Triton decode still sees W - 1.
        origin="Gemma4Attention passes sliding_window where kernels expect sliding_window - 1",
        upstream="fixed in 0.5.14",
        absorbed="0.5.14, models/gemma4_causal.py",
        about=About(
            why="Kernels expect the distance to the oldest visible key, W - 1, and get W. trtllm_mha, and Triton's "
            "extend and verify, then see a key more than transformers does.",
            eligibility="Every sliding layer, decided when the model is made.",
            fallback="Full layers are left alone. Alone it does not put a Triton decode right, which needs "
            "triton-decode-window.",
            proof=(
                "tests/engine/test_parity_with_transformers.py::test_without_the_window_fix_logprobs_differ",
                "tests/engine/test_parity_with_transformers.py::test_tokens_and_logprobs_are_equal_and_a_clean_run_leaves_no_dump",
                "tests/engine/test_diff_live.py",
            ),
        ),
        attachments=(Hook("gemma4.attention_init", How.AFTER, f"{_AT}.window_width:narrow_window"),),
        meant_to_change="past the window",
    ),
    Patch(
        id="triton-decode-window",
        kind=Kind.FIX,
        title="a Triton decode sees W keys on sliding layers, not W-1 (changes shipped outputs past the window)",
        # Alone it puts a Triton decode right, on keys that prefill wrote with W + 1; only with swa-window-width do
        # Triton's prefill, verify and decode all agree with transformers. Nothing of trtllm_mha changes.
        origin="update_sliding_window_buffer counts the decode's own key into a list of W - 1",
        upstream="open up to 0.5.23",
        until="0.5.23",
        about=About(
            why="A Triton decode has written its own key before it lists the window, and still takes W - 1: one key "
            "too few as soon as the sequence holds W tokens. Target verify is right, so MTP changes the answer.",
            eligibility="Decodes of Triton attention with a sliding window: the eager list, that of captures and "
            "replays, and the static buffer's size.",
            fallback="Extend, verify, other backends and models without a window keep SGLang's lists.",
            proof=(
                "tests/unit/test_fix_triton_decode_window.py",
                "tests/engine/test_parity_with_transformers.py",
                "tests/engine/test_diff_live.py",
            ),
        ),
        attachments=(
            Hook("triton.init_metadata", How.AROUND, f"{_AT}.window_width:around_init_metadata"),
            Hook("triton.decode_buffers", How.AROUND, f"{_AT}.window_width:around_decode_buffers"),
            Hook("triton.init_graph_state", How.AROUND, f"{_AT}.window_width:around_graph_state"),
        ),
        meant_to_change="past the window",
    ),
    Patch(
        id="piecewise-ple",
        kind=Kind.FIX,
        title="per-layer inputs of E2B and E4B in a static buffer, where piecewise CUDA graphs read them",
        origin="with --enforce-piecewise-cuda-graph a prefill reads the per-layer inputs of the capture",
        upstream="open up to 0.5.23",
        not_ported="0.5.23, nobody has seen whether the defect lives there; the name of the piecewise state has moved",
        default=True,
        about=About(
            why="A piecewise graph reads each input at the address of its capture. The per-layer inputs are a new "
            "tensor in each prefill, so a replay of E2B or E4B reads those of the capture, and answers are wrong.",
            eligibility="Models with per-layer inputs, where a piecewise CUDA graph is about to read them.",
            fallback="An eager prefill and a model without per-layer inputs keep SGLang's own tensor.",
            proof=(
                "tests/unit/test_piecewise_graphs.py",
                "tests/gpu/test_defaults_on_cuda.py::test_sglangs_own_piecewise_graphs_read_the_per_layer_inputs_of_their_capture",
            ),
        ),
        attachments=(Hook("gemma4.per_layer_inputs", How.AROUND, f"{_AT}.piecewise_ple:around_per_layer_inputs"),),
    ),
    Patch(
        id="force-eagle",
        kind=Kind.FIX,
        knob="force_eagle",
        title="no promotion of a Gemma-4 assistant to FROZEN_KV_MTP; the start says why EAGLE cannot serve it",
        origin="SGLANG_GEMMA4_FORCE_EAGLE of the pull requests",
        upstream="open up to 0.5.23",
        until="0.5.23",
        about=About(
            why="SGLang promotes NEXTN and EAGLE to FROZEN_KV_MTP if the draft is a Gemma-4 assistant, and gives no "
            "way out. This opts out; and since such an assistant has no keys of its own, the start says why EAGLE "
            "cannot serve it instead of dying in a forward.",
            eligibility="Starts with NEXTN or EAGLE and a draft model.",
            fallback="FROZEN_KV_MTP by name, EAGLE3 and drafts that are no Gemma-4 assistant are resolved by SGLang.",
            proof=("tests/unit/test_force_eagle.py",),
        ),
        attachments=(Hook("speculative.resolve_alias", How.AROUND, f"{_AT}.force_eagle:around_resolve_alias"),),
    ),
    Patch(
        id="spec-v2-row-width",
        kind=Kind.FIX,
        title="under spec v2 a request's row of req_to_token holds all slots that are allocated for it",
        origin="SGLang 33579, which saw it with another draft; SGLang 26972 made room for wide trees alone",
        upstream="open in 0.5.14; later releases make room on pages of several tokens alone",
        not_ported="0.5.23, pages of one token alone still need it there; its reserve per decode has moved",
        about=About(
            why="Twice a step's tokens are allocated ahead, and a row has room for one. From 8 tokens a step on, or "
            "with wide trees on pages of one token, slots of a request near its context's end spill into the next "
            "row: another request answers from them, and pages that lie behind the row's end are never freed.",
            eligibility="Servers whose speculation runs under spec v2. mtp-v2 brings it along.",
            fallback="Without speculation and without spec v2 rows are SGLang's.",
            proof=(
                "tests/engine/test_mtp_v2_live.py",
                "tests/engine/test_repro_corpus.py",
                "tests/unit/test_mtp_v2_gates.py",
            ),
        ),
        attachments=(Hook("speculative.row_headroom", How.AROUND, f"{_AT}.spec_v2_row_width:around_row_headroom"),),
    ),
    Patch(
        id="spec-v2-stop-window",
        kind=Kind.FIX,
        title="a request ends at the first of a step's tokens that ends it: stop strings, end tokens, length",
        origin="a backport that MTP under spec v2 needs",
        upstream="stop strings since 0.5.14, what follows an end token near max_new_tokens since 0.5.18",
        absorbed="0.5.18, managers/schedule_batch.py",
        about=About(
            why="Under spec v2 a step brings several tokens, and SGLang asks about them at once. Stop strings are "
            "missed, or what follows them is answered too; so is what follows an end token near max_new_tokens.",
            eligibility="Every step under spec v2 that brings a request more than one token. mtp-v2 brings it along.",
            fallback="Steps of one token and verification without spec v2, which judges each token, are SGLang's.",
            proof=("tests/unit/test_spec_v2_windows.py", "tests/engine/test_mtp_v2_live.py"),
        ),
        attachments=(Hook("req.update_finish_state", How.AROUND, f"{_AT}.spec_v2_window:around_update_finish_state"),),
    ),
    Patch(
        id="spec-v2-grammar-end",
        kind=Kind.FIX,
        title="under spec v2 a grammar is fed up to its end, and the request ends there",
        origin="a backport that MTP under spec v2 needs",
        upstream="fixed in 0.5.14",
        absorbed="0.5.14, managers/scheduler_components/batch_result_processor.py",
        about=About(
            why="SGLang feeds a grammar whole windows, also past its end, and asks whether it has ended before it "
            "feeds it: a request ends a step late with every token of it, or is aborted by the grammar's error.",
            eligibility="Requests with a grammar under spec v2. mtp-v2 brings it along.",
            fallback="Other requests and other batches are SGLang's. A token that the grammar refuses is too.",
            proof=("tests/unit/test_spec_v2_windows.py",),
        ),
        attachments=(
            Hook("results.process_decode", How.AROUND, f"{_AT}.spec_v2_grammar_end:around_process_decode"),
            Hook("req.update_finish_state", How.AROUND, f"{_AT}.spec_v2_grammar_end:around_update_finish_state"),
            Hook("results.apply_grammar", How.AROUND, f"{_AT}.spec_v2_grammar_end:around_apply_grammar"),
        ),
    ),
    Patch(
        id="spec-v2-hidden-rows",
        kind=Kind.FIX,
        title="under spec v2 a request gets the hidden states of its own tokens, one row each",
        origin="a backport that MTP under spec v2 needs",
        upstream="fixed in 0.5.14",
        absorbed="0.5.14, managers/scheduler_components/batch_result_processor.py",
        about=About(
            why="A verification has several rows per request, and SGLang returns row i to request i: another "
            "request's from the second on, and one per step.",
            eligibility="Decodes under spec v2 of requests with return_hidden_states. mtp-v2 brings it along.",
            fallback="Without spec v2 the rows are SGLang's.",
            proof=("tests/unit/test_spec_v2_windows.py",),
        ),
        attachments=(
            Edit("results.process_decode", f"{_HIDDEN}{_ONE_ROW}{_GRAMMAR}", f"{_HIDDEN}{_OWN_ROWS}{_GRAMMAR}"),
        ),
    ),
    Patch(
        id="free-swa-pages",
        kind=Kind.FIX,
        title="no mapping entry leads into an SWA page that free_swa has given back",
        origin="a backport that MTP under spec v2 needs",
        upstream="fixed in 0.5.14",
        absorbed="0.5.14, mem_cache/allocator/swa.py",
        about=About(
            why="free_swa releases whole pages and clears only the entries of the slots that it was told of. Slots "
            "allocated ahead of a request's last token keep leading into a page that is another's by then.",
            eligibility="Every free_swa on pages of more than one token. mtp-v2 brings it along.",
            fallback="On pages of one token nothing can be left over. A second SWA page of the same full page stays.",
            proof=("tests/unit/test_free_swa_pages.py",),
        ),
        attachments=(Hook("swa.free_swa", How.AROUND, f"{_AT}.free_swa_pages:around_free_swa"),),
    ),
    Patch(
        id="vision-hf-exact",
        kind=Kind.FIX,
        title="the vision tower sees no padding, as in transformers (changes shipped outputs of images and videos)",
        # vision-batching, if it is on too, packs many images into one call.
        origin="CUDA vision attention ignores its mask, and pooling adds padding to an image's first soft token",
        upstream="open up to 0.5.23",
        until="0.5.23",
        about=About(
            why="Every image is padded to one number of patches. On CUDA patches attend to the padding, and on every "
            "device the padding is added to the first soft token of an image.",
            eligibility="Images and video frames of Gemma-4's tower, one per call, or packed if vision-batching is on.",
            fallback="Embeddings that came ready keep their place. Attention that takes no bounds, CUDA graphs of the "
            "tower and deterministic inference leave SGLang's own tower, with the reason on record.",
            proof=("tests/unit/test_vision_hf_exact.py", "tests/engine/test_vision_live.py"),
        ),
        attachments=(
            Hook("gemma4.image_feature", How.AROUND, f"{_AT}.vision_hf_exact:around_feature"),
            Hook("gemma4.video_feature", How.AROUND, f"{_AT}.vision_hf_exact:around_feature"),
            Hook("gemma4.vision_attention", How.AROUND, f"{_AT}.vision_hf_exact:around_attention"),
            Hook("scheduler.internal_state", How.AFTER, f"{_AT}.vision_hf_exact:after_internal_state"),
        ),
        own_paths=("padding left out",),
        meant_to_change="of images and videos",
    ),
    # Last: it sees what every other fix has made of a build.
    Patch(
        id="clamp",
        kind=Kind.FIX,
        title="a page that would be read out of range is the null page instead; the request goes on, marked degraded",
        origin="the clamp of the pull requests, which told nobody (accept length 2.76 to 1.69)",
        upstream=NO_UPSTREAM,
        until="0.5.23",
        attachments=(
            *PAGE_HOOKS,
            Hook("server_args.post_init", How.BEFORE, f"{_AT}.clamp:refuse_several_ranks", (BASE,)),
            Hook("server_args.last_check", How.BEFORE, f"{_AT}.clamp:refuse_several_settled_ranks", ("0.5.23",)),
            Hook("stream.payload", How.AFTER, f"{_AT}.clamp:after_payload"),
            Hook("tokenizer.batch_output", How.BEFORE, f"{_AT}.clamp:before_batch_output"),
            Hook("request_log.finished", How.BEFORE, f"{_AT}.clamp:before_finished_log"),
            Hook("tokenizer.wait_one", How.AROUND, f"{_AT}.clamp:around_response"),
            Hook("req.reset_for_retract", How.AFTER, f"{_AT}.clamp:after_retract"),
            Hook("scheduler.flush_cache", How.AFTER, f"{_AT}.clamp:after_flush"),
            Hook("scheduler.internal_state", How.AFTER, f"{_AT}.clamp:after_internal_state"),
        ),
        about=About(
            why="A safety net for a server that must not die of a page table while its cause is looked for. Answers of "
            "the requests concerned may be wrong, so each is marked: gemma4_degraded in its meta_info, and with that "
            "in SGLang's request log and exported request metrics; a count in /server_info; lines in the log.",
            eligibility="What the probe page-table checks, eager and in CUDA graphs. Never a default. A server with "
            "--tp-size or --pp-size above 1 is refused at start: a rank could keep a marked request out of its own "
            "prefix cache only, and ranks whose caches differ would make different batches. Refused beside that probe "
            "in trap, contain or 1; beside log, dumps are written too.",
            fallback="Ids of another pool that are in range cannot be told from right ones entry by entry: the "
            "target's requests are marked, a draft's go on.",
            proof=("tests/engine/test_clamp_live.py", "tests/unit/test_clamp.py", "tests/unit/test_clamp_replies.py"),
        ),
    ),
)
