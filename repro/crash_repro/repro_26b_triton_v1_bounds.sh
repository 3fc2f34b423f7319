#!/usr/bin/env bash
# Gemma-4 26B-A4B, Triton attention, MTP V1, probes on.
# repro_26b_triton_v1_bounds.sh --model DIR --draft-model DIR   or, on a CPU: repro_26b_triton_v1_bounds.sh --toy
#
# Server:
#   gemma4-triage serve --patches none --debug 1 --dir RUN/26b_triton_v1_bounds/dumps -- --model-path MODEL \
#     --host 127.0.0.1 --port 30000 --attention-backend triton --speculative-draft-model-path DRAFT_MODEL \
#     --speculative-algorithm NEXTN --speculative-num-steps 3 --speculative-eagle-topk 1 \
#     --speculative-num-draft-tokens 4
#
# Client, load summarisation:
#   (8000 tokens in, 1000 out, 80 requests, 64 at a time: dies about 30 s in, at about 85% of the SWA
#     pool)
#   python -m sglang.bench_serving --backend sglang --base-url http://127.0.0.1:30000 --model MODEL \
#     --dataset-name random-ids --tokenize-prompt --random-input-len 8000 --random-output-len 1000 \
#     --random-range-ratio 1.0 --num-prompts 80 --max-concurrency 64 --warmup-requests 1 --seed 1 \
#     --disable-tqdm --output-file RUN/26b_triton_v1_bounds/bench_summarisation.jsonl
#
# Other loads, with --load ID or --load all:
#   chat-1k: 1000 in, 1000 out, 32 at a time (chosen: 80 requests: no count was published)
#   prefill-3k: 3000 in, 100 out (chosen: 80 requests: no count was published, 32 at a time)
#   even-500: 500 in, 500 out (chosen: 80 requests: no count was published, 32 at a time)
#   decode-1k: 100 in, 1000 out (chosen: 80 requests: no count was published, 32 at a time)
#   prefill-7k: 7000 in, 10 out, 30 requests (chosen: 30 at a time)
#   images: 6 images of 480 x 480 in each of 100 requests (chosen: 128 tokens of text in, 128 out, 16 at
#     a time)
#   chats: 50 chats of 200 tokens (chosen: one turn each: 200 tokens in and 200 out, 16 at a time)
#
# Expected with these patches:
#   sm90: every request is answered and the server lives; no violation is dumped, because Triton
#     attention translates page ids through the pool that it reads at that moment. Measured on the CPU
#     engine for the cells that tests/engine/results names; not measured with real weights.
#   sm100: every request is answered and the server lives; no violation is dumped, because Triton
#     attention translates page ids through the pool that it reads at that moment. Measured on the CPU
#     engine for the cells that tests/engine/results names; not measured with real weights.
#
# Stops when all is answered, the server or its client ends, no log grows for 600 s,
# or after 1800 s of start or 3600 s of a load.
# Leaves RUN/26b_triton_v1_bounds/ (log.txt of the server, client_*.txt, bench_*.jsonl, dumps/),
# RUN/verdict.json and RUN/TRIAGE_REPORT.md.
exec gemma4-triage repro crash 26b_triton_v1_bounds "$@"
