"""Run inside a fresh process: start SGLang's engine, answer requests with pictures, write what came out as JSON.

The spec: engine (keyword arguments), batches (each a list of requests that are prefilled together: text, images
(paths), video (paths of its frames), as (a format of SGLang's in which images come: "processor_output",
"precomputed_embedding")), new_tokens. The result: per batch the requests' {tokens, logprobs} or {error}, and how many
frames each call of the tower's layers had; and the paths that the patches took.
"""

import asyncio
import json
import sys
from pathlib import Path

import numpy as np
import torch
from PIL import Image


def main(spec_path: str, result_path: str) -> None:
    with open(spec_path) as file:
        spec = json.load(file)
    from sglang.srt.entrypoints.engine import Engine

    calls, together = Path(result_path).with_name("calls"), Path(result_path).with_name("together")
    # The scheduler is forked from here and inherits both.
    write_frames_of_each_call(calls)
    prefill_together(together)
    engine = Engine(**spec["engine"])
    batches = []
    for batch in spec["batches"]:
        calls.write_text("")
        together.write_text(str(len(batch)))
        answers = engine.loop.run_until_complete(answer_all(engine, batch, spec))
        batches.append({"answers": answers, "calls": [int(line) for line in calls.read_text().split()]})
    (state,) = engine.get_server_info()["internal_states"]
    engine.shutdown()
    with open(result_path, "w") as file:
        json.dump({"batches": batches, "paths": state.get("gemma4_triage_paths", {})}, file)


def write_frames_of_each_call(path):
    from sglang.srt.models.gemma4_vision import Gemma4VisionTransformer

    own = Gemma4VisionTransformer.forward

    def forward(self, inputs_embeds, attention_mask, patch_positions):
        with path.open("a") as file:
            file.write(f"{len(inputs_embeds)}\n")
        return own(self, inputs_embeds, attention_mask, patch_positions)

    Gemma4VisionTransformer.forward = forward


def prefill_together(path):
    """Prefill nothing until all requests of a batch have come, and then the shortest first.

    Requests come in the order in which their pictures are ready, so two runs of one batch can differ in it, and with it
    in bits of the logits: on a CPU, torch computes the last elements of a tensor, those that fill no two vectors, with
    the scalar tanh of the C library and all others with a vector's. A gate of the per-layer inputs has 8 elements per
    token in this toy, so with AVX-512 the last (tokens mod 4) rows of a prefill are computed so, whose ever they are.

    Args:
        path: holds how many requests to wait for; written by the parent, 0 once they are prefilled.
    """
    from sglang.srt.managers.scheduler import Scheduler

    own, met = Scheduler.get_new_batch_prefill, set()

    def get_new_batch_prefill(self):
        wanted = int(path.read_text() or 0) if path.exists() else 0
        met.update(request.rid for request in self.waiting_queue)
        if len(met) < wanted:
            return None
        self.waiting_queue.sort(key=lambda request: len(request.origin_input_ids))
        batch = own(self)
        if batch is not None:
            met.clear()
            path.write_text("0")
        return batch

    Scheduler.get_new_batch_prefill = get_new_batch_prefill


async def answer_all(engine, batch, spec):
    answers = [
        engine.async_generate(
            **prompt_of(request, spec["engine"]["model_path"]),
            sampling_params={"temperature": 0, "ignore_eos": True, "max_new_tokens": spec["new_tokens"]},
            return_logprob=True,
            top_logprobs_num=5,
        )
        for request in batch
    ]
    return [result(one) for one in await asyncio.gather(*answers, return_exceptions=True)]


def prompt_of(request, folder):
    if "as" not in request:
        frames = [np.asarray(Image.open(path)) for path in request.get("video", ())]
        video = [torch.from_numpy(np.stack(frames)).permute(0, 3, 1, 2)] if frames else None
        return {"prompt": request["text"], "image_data": request.get("images"), "video_data": video}
    from transformers import AutoModelForImageTextToText, AutoProcessor

    images = [[Image.open(path) for path in request["images"]]]
    made = AutoProcessor.from_pretrained(folder)(text=[request["text"]], images=images, return_tensors="pt")
    item = {"format": request["as"], **made}
    if request["as"] == "precomputed_embedding":
        model = AutoModelForImageTextToText.from_pretrained(folder, dtype=torch.float32).eval().model
        with torch.no_grad():
            found = model.get_image_features(made["pixel_values"], made["image_position_ids"]).pooler_output
        item = {"format": request["as"], "modality": "IMAGE", "feature": found}
    return {"input_ids": made["input_ids"][0].tolist(), "image_data": [item]}


def result(answer):
    if isinstance(answer, Exception):
        return {"error": f"{type(answer).__name__}: {answer}"}
    meta = answer["meta_info"]
    return {
        "tokens": answer["output_ids"],
        "prompt": meta["prompt_tokens"],
        "logprobs": [one[0] for one in meta["output_token_logprobs"]],
        "top": [[one[:2] for one in step] for step in meta["output_top_logprobs"]],
    }


if __name__ == "__main__":
    main(*sys.argv[1:])
