"""Optimisations beyond single layers: prefills, encoders, pools and schedules. Each can be switched off alone."""

from __future__ import annotations

from gemma4_runtime.catalog.shared_hooks import OWN_LINES, PATHS
from gemma4_runtime.patch import About, Edit, Hook, How, Kind, Patch

_AT = "gemma4_runtime.optimisations"
_DECISIONS = Hook("scheduler.internal_state", How.AFTER, f"{_AT}.pool_decisions:after_internal_state")
_LENGTHS = 'cur_kv_lens_cpu = torch.tensor(cur_kv_lens, dtype=torch.int32, device="cpu")\n'
_WHOLE_PAGES = (
    "from gemma4_runtime.mtp_v2.whole_pages import round_up\n"
    "num_needed_tokens = round_up(batch, cur_kv_lens, nxt_kv_lens)\n"
    "if not num_needed_tokens:\n"
    "    return\n"
)
_SCHEDULE = Hook("overlap.resolve_lengths", How.AFTER, f"{_AT}.schedule_stream:after_resolve_lengths")

OPTIMISATIONS: tuple[Patch, ...] = (
    Patch(
        id="yoco",
        kind=Kind.OPTIMISATION,
        knob="yoco",
        title="in a prefill, layers that share keys run on the last token of each request alone",
        origin="YOCO fast prefill of the pull requests, whose Triton path reads another token's keys",
        upstream="open up to 0.5.23",
        not_ported="0.5.23, needs new bodies over the prefill graph runner and layers/layer_boundary",
        default=True,
        attachments=(
            Hook("gemma4.text_forward", How.AROUND, f"{_AT}.yoco_prefill:around_text_forward"),
            Hook("forward_batch.init_new", How.AROUND, f"{_AT}.yoco_prefill:around_batch_init"),
            Hook("piecewise.can_run", How.AROUND, f"{_AT}.yoco_prefill:around_can_run"),
            Hook("piecewise.install", How.AROUND, f"{_AT}.yoco_prefill:around_install"),
            Hook("piecewise.replay", How.AROUND, f"{_AT}.yoco_prefill:around_replay"),
            PATHS,
        ),
        own_paths=("fused", "in piecewise graphs", "skipped: a chunk that is not the last"),
        last_rows_only=True,
        about=About(
            why="The last layers of E2B and E4B read keys that earlier layers wrote, and write none. Of a prefill's "
            "rows in them only the one that is sampled from is used.",
            eligibility="Prefills and mixed batches on Triton, trtllm_mha or a hybrid of both that leave out at least "
            "GEMMA4_TRIAGE_YOCO_ROWS rows. Not: log probabilities of prompt tokens, hidden states of all tokens, "
            "EAGLE, LoRA, pipeline or attention data parallelism, deterministic inference. In piecewise CUDA graphs "
            "these layers run in the graphs of the smallest captured size with a row for each request, up to 128.",
            fallback=OWN_LINES,
            proof=(
                "tests/engine/test_yoco_live.py",
                "tests/gpu/test_defaults_on_cuda.py",
                "tests/unit/test_yoco_cut_graph.py",
                "tests/unit/test_yoco_eligible.py",
                "tests/unit/test_yoco_forward.py",
                "docs/bench/serving_prefill_e2b_h200_2026-11-22.json::yoco",
                "docs/bench/serving_prefill_e4b_h200_2026-11-22.json::yoco",
                "docs/bench/lengths_cut_h200_2026-11-26_e2b.json::yoco",
                "docs/bench/lengths_cut_h200_2026-11-26_e4b.json::yoco",
            ),
            switches=("GEMMA4_TRIAGE_YOCO_ROWS",),
        ),
    ),
    Patch(
        id="piecewise-multimodal",
        kind=Kind.OPTIMISATION,
        knob="piecewise_multimodal",
        title="prefills of multimodal models in piecewise CUDA graphs; the vision tower stays eager",
        origin="the knob of the pull requests; SGLang has these graphs for text models alone",
        upstream="switched off by its is_multimodal rule up to 0.5.23",
        # Without it these graphs give E2B and E4B wrong answers.
        not_ported="0.5.23, a list of models in configs/model_config.py decides there",
        default=True,
        brings=("piecewise-ple",),
        attachments=(
            Hook("server_args.piecewise", How.AROUND, f"{_AT}.piecewise_multimodal:around_handle"),
            Hook("piecewise.can_run", How.AROUND, f"{_AT}.piecewise_multimodal:around_can_run"),
            PATHS,
        ),
        own_paths=("fused",),
        about=About(
            why="SGLang gives the prefills of text models piecewise CUDA graphs and those of multimodal models none, "
            "though only the language model would run in them.",
            eligibility="Gemma-4 servers on CUDA for which no other rule of SGLang's switches the graphs off, and "
            "prefills that fit a captured size: up to 4096 tokens, unless the server is told other sizes. Not: mixed "
            "batches with images, servers with --enable-breakable-cuda-graph: "
            "SGLang makes no such graphs of a multimodal Gemma-4.",
            fallback="The prefill runs eagerly, as SGLang's own. Which way was taken is counted in /server_info.",
            proof=(
                "tests/unit/test_piecewise_graphs.py",
                "tests/gpu/test_defaults_on_cuda.py",
                "docs/bench/lengths_alone_h200_2026-11-26_e4b.json::piecewise-multimodal",
                "docs/bench/lengths_alone_h200_2026-11-26_e2b.json::piecewise-multimodal",
                "docs/bench/lengths_whole_h200_2026-11-26_26b.json::piecewise-multimodal",
                "docs/bench/lengths_mtp_h200_2026-11-26_e4b.json::piecewise-multimodal",
                "docs/bench/lengths_mtp_h200_2026-11-26_e2b.json::piecewise-multimodal",
            ),
        ),
    ),
    Patch(
        id="vision-batching",
        kind=Kind.OPTIMISATION,
        title="images of a batch through the vision tower together, as many as memory allows; one embedder call",
        origin="the batched vision encoder of the pull requests",
        upstream="one tower call per image and one embedder call per image up to 0.5.23",
        not_ported="0.5.23, the embedding has moved to managers/mm_schedule.py and changed by half",
        default=True,
        about=About(
            why="SGLang sends images one by one through the vision tower and the embedder, and makes a one-hot of all "
            "positions that takes 0.5 GB per image of 2520 patches.",
            eligibility="Images and video frames of all requests of a batch, a bucket per shape, cut where memory "
            "ends. Not: deterministic inference, tensor parallel ranks without a budget of their own, a tower without "
            "pooling, CUDA graphs of the tower, pixels without positions.",
            fallback=OWN_LINES,
            proof=(
                "tests/engine/test_vision_live.py",
                "tests/unit/test_vision_batching.py",
                "tests/unit/test_vision_requests.py",
                "tests/unit/test_vision_budget.py",
                "tests/gpu/test_defaults_on_cuda.py::test_pictures",
                "docs/bench/serving_pictures_e2b_h200_2026-11-22.json::vision-batching",
            ),
            switches=("GEMMA4_TRIAGE_VISION_BUDGET_MB",),
        ),
        attachments=(
            Hook("gemma4.image_feature", How.AROUND, f"{_AT}.vision_features:around_feature"),
            Hook("gemma4.video_feature", How.AROUND, f"{_AT}.vision_features:around_feature"),
            Hook("gemma4.vision_attention", How.AROUND, f"{_AT}.vision_features:around_attention"),
            Hook("gemma4.vision_positions", How.AROUND, f"{_AT}.vision_features:around_position_embeddings"),
            Hook("gemma4.vision_pooling", How.AROUND, f"{_AT}.vision_features:around_pooling"),
            Hook("multimodal.chunked_embedding", How.AROUND, f"{_AT}.vision_requests:around_chunked_embedding"),
            PATHS,
        ),
        own_paths=("batched",),
    ),
    Patch(
        id="owner-only-kv",
        kind=Kind.OPTIMISATION,
        title="layers that share another layer's KV get no pool memory: more tokens from the same bytes",
        origin="this project: E2B and E4B hold 2.33 and 1.75 times the tokens",
        upstream="open up to 0.5.23",
        not_ported="0.5.23, the lists of layers are made elsewhere, and the pools have new readers",
        default=True,
        about=About(
            why="Layers that share KV never write, and SGLang counts and allocates them all the same.",
            eligibility="Gemma-4 targets with shared layers on two pools, if every attention layer of the loaded model "
            "is bound to an owner of its kind. Not: pipeline parallelism, hierarchical cache, PD disaggregation, KV "
            "offload, LMCache, HiSparse, the KV canary.",
            fallback="The pools are SGLang's. Decided once, before memory is sized; the reason is in the log, the "
            "guard manifest and /server_info.",
            proof=(
                "tests/engine/test_owner_only_kv_live.py",
                "tests/unit/test_owner_only_kv.py",
                "tests/unit/test_pools_arithmetic.py",
                "tests/gpu/test_defaults_on_cuda.py",
                "docs/bench/serving_long_context_e2b_h200_2026-11-22.json::owner-only-kv",
                "docs/bench/serving_long_context_e4b_h200_2026-11-22.json::owner-only-kv",
            ),
        ),
        attachments=(Hook("runner.swa_layers", How.AFTER, f"{_AT}.owner_only_kv:after_adjust_layers"), _DECISIONS),
    ),
    Patch(
        id="swa-ratio-policy",
        kind=Kind.OPTIMISATION,
        title="the ratio between the two KV pools from context length, running requests and memory, unless it is given",
        origin="the ratio of the pull requests; one of theirs per model, ours per load",
        upstream="without a radix cache, from --max-running-requests, by 0.5.17; with one open up to 0.5.23",
        not_ported="0.5.23, SGLANG_SWA_EVICTION_INTERVAL_MULTIPLIER is gone; without a radix cache SGLang sizes it",
        about=About(
            why="One ratio for all loads leaves one of the two pools idle and starves the other.",
            eligibility="Servers with two pools whose ratio nobody gave; a given one is kept, also if it equals the "
            "default. Not: pipeline parallelism, hierarchical cache, PD disaggregation, drafts with KV of their own.",
            fallback="SGLang's ratio stays. The reason is in the log, the guard manifest and /server_info.",
            proof=(
                "tests/engine/test_swa_ratio_policy_live.py",
                "tests/unit/test_ratio_policy.py",
                "tests/unit/test_swa_ratio_given.py",
            ),
        ),
        attachments=(
            Hook("server_args.post_init", How.BEFORE, f"{_AT}.swa_ratio_policy:before_post_init"),
            Hook("runner.profile_bytes", How.AFTER, f"{_AT}.swa_ratio_policy:after_profile"),
            _DECISIONS,
        ),
    ),
    Patch(
        id="swa-window-lists",
        kind=Kind.OPTIMISATION,
        title="what sliding layers of Triton attention read is listed in one launch, and the host waits for nothing",
        origin="SGLang 38137, which measures the time that a GPU idles for it on Gemma-4 E2B",
        upstream="open in 0.5.14",
        not_ported="0.5.23, not measured there: translator.pack_read_stream makes the list",
        default=True,
        attachments=(
            Hook("triton.window_buffer", How.AROUND, f"{_AT}.swa_window_lists:around_window_buffer"),
            _SCHEDULE,
            PATHS,
        ),
        own_paths=("fused", "reference"),
        about=About(
            why="SGLang slices the list by a length that lies on the device, twice before each decode, verify and "
            "draft: with overlap scheduling the host then waits for the step before, and cannot run ahead of it.",
            eligibility="Triton attention with a sliding window, over SGLang's own pool pair or one pool, on CUDA and "
            "on the host engine; not on ROCm.",
            fallback=OWN_LINES,
            proof=(
                "tests/kernels/test_window_lists.py",
                "tests/unit/test_swa_window_lists.py",
                "tests/engine/test_mtp_v2_live.py",
                "tests/gpu/test_schedule_stream.py",
                "tests/gpu/test_defaults_on_cuda.py",
                "tests/gpu/test_mtp_v2_on_cuda.py::test_the_host_waits_no_more_often_than_without_spec_v2",
                "kernels/bench/rows/window_lists_h200_2026-11-22.json",
            ),
        ),
    ),
    Patch(
        id="draft-policy",
        kind=Kind.OPTIMISATION,
        title="MTP drafts only where it pays: by requests in a step and by how many drafts are taken",
        origin="the mtp load of this project: at 64 requests drafts cost more than they bring",
        upstream="open up to 0.5.23; adaptive speculation of EAGLE changes the number of steps and never to none",
        not_ported="0.5.14, the worker is SGLang's own, whose steps all draft",
        about=About(
            why="A verification of many requests is bound by computation: its draft tokens cost as much as tokens that "
            "are kept. Few requests wait for weights, and drafts are nearly free.",
            eligibility="Decodes of mtp-v2, which brings it along, on models that were measured, or with a table of "
            "GEMMA4_TRIAGE_DRAFTS. docs/drafts.md has the tables and the rule.",
            fallback="Other models draft in every step. What is done and why is in /server_info "
            "(gemma4_triage_drafts), and sglang:spec_num_steps is 0 while no drafts are made.",
            proof=(
                "tests/unit/test_draft_policy.py",
                "tests/unit/test_mtp_v2_plain_step.py",
                "tests/engine/test_draft_policy_live.py",
            ),
            switches=("GEMMA4_TRIAGE_DRAFTS",),
        ),
        attachments=(
            Hook("results.process_decode", How.AFTER, f"{_AT}.draft_policy:after_process_decode"),
            Hook("scheduler.internal_state", How.AFTER, f"{_AT}.draft_policy:after_internal_state"),
        ),
    ),
    Patch(
        id="spec-v2-whole-pages",
        kind=Kind.OPTIMISATION,
        title="under spec v2 a request is given slots by whole pages, and most steps ask the allocator for none",
        origin="the mtp-batches load of this project: at few requests the GPU waits for the host",
        upstream="open up to 0.5.23",
        not_ported="0.5.14, not measured there; eagle_prepare_for_decode has taken the place of the method in 0.5.23",
        about=About(
            why="SGLang tops each request up by a few tokens before each step, for slots of a page that the request "
            "has to itself already: launches and copies that the host makes while the GPU may wait for it.",
            eligibility="Decodes under spec v2. mtp-v2 brings it along. On pages of one token nothing changes.",
            fallback="A step that needs a page allocates as SGLang does. No request gets more pages than with SGLang, "
            "nor more slots than its row has.",
            proof=("tests/unit/test_spec_v2_whole_pages.py", "tests/engine/test_mtp_v2_live.py"),
        ),
        attachments=(Edit("eagle.v2_prepare_for_decode", _LENGTHS, f"{_WHOLE_PAGES}{_LENGTHS}"),),
    ),
    Patch(
        id="mtp-v2",
        kind=Kind.OPTIMISATION,
        knob="mtp_v2",
        title="MTP with overlap scheduling: FROZEN_KV_MTP under spec v2, which the release refuses",
        origin="FrozenKVMTPWorkerV2 of the pull requests, whose V1 verification leaked KV per request",
        upstream="a worker of its own since 0.5.14",
        # What the release does wrong where a step brings a request more than one token.
        absorbed="0.5.14, speculative/frozen_kv_mtp_worker_v2.py",
        brings=(
            "spec-v2-row-width",
            "spec-v2-stop-window",
            "spec-v2-grammar-end",
            "spec-v2-hidden-rows",
            "free-swa-pages",
            "draft-policy",
            "spec-v2-whole-pages",
            # Without it the host waits for the verification before it can prepare the next draft.
            "swa-window-lists",
            # Without it a draft on trtllm_mha dies on a hybrid.
            "swa-state-swap",
        ),
        about=About(
            why="The scheduler waits for each MTP step before it prepares the next one. FrozenKVMTPWorkerV2, which "
            "would overlap the two, is a stub that raises in this release.",
            eligibility="FROZEN_KV_MTP, with overlap as the server has it: --disable-overlap-schedule runs the same "
            "worker step by step. Other speculation is SGLang's.",
            fallback="Refused at start, with the reason: DP attention, hierarchical cache, PD disaggregation, adaptive "
            "steps, custom logit processors, topk above 1 unless all attention is triton's, a "
            "plan stream.",
            proof=(
                "tests/engine/test_mtp_v2_live.py",
                "tests/unit/test_mtp_v2_gates.py",
                "tests/unit/test_mtp_v2_lengths.py",
                "tests/unit/test_mtp_v2_seeds.py",
                "tests/unit/test_mtp_v2_verify_buffers.py",
                "tests/gpu/test_mtp_v2_on_cuda.py",
                "docs/bench/serving_mtp_e2b_h200_2026-11-22.json::v2",
            ),
        ),
        attachments=(
            Hook("speculative.supports_v2", How.AROUND, f"{_AT}.mtp_v2:around_supports_spec_v2"),
            Hook("speculative.create_worker", How.AROUND, f"{_AT}.mtp_v2:around_create_worker"),
            Hook("speculative.handle_frozen", How.REPLACE, f"{_AT}.mtp_v2:handle_frozen_kv_mtp"),
            Hook("speculative.draft_pool", How.AROUND, f"{_AT}.mtp_v2:around_get_draft_kv_pool"),
            Hook("scheduler.needs_cpu_seq_lens", How.AROUND, f"{_AT}.mtp_v2:around_needs_cpu_seq_lens"),
            Hook("overlap.resolve_lengths", How.AROUND, f"{_AT}.mtp_v2_lengths:around_resolve_lengths"),
            _SCHEDULE,
            Hook("triton.init_graph_state", How.AFTER, f"{_AT}.mtp_v2_verify_mask:after_graph_state"),
            Hook("trtllm.init_metadata", How.AROUND, f"{_AT}.mtp_v2_lengths:around_metadata"),
            Hook("trtllm.init_graph_metadata", How.AROUND, f"{_AT}.mtp_v2_lengths:around_metadata"),
        ),
    ),
)
