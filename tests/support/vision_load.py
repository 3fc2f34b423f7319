"""Requests with pictures: how an engine serves a batch of them, and what is kept of the answers.

A request is {text, images (paths), video (paths of its frames), as (a format of SGLang's in which images come:
"processor_output", "precomputed_embedding")}, and its answer {tokens, prompt: how many tokens it has, logprobs, top} or
{error}.
"""

import asyncio
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

import engine_records

PATHS = "gemma4_triage_paths"


def spec_of(engine: dict[str, Any], batches: Iterable[list[dict[str, Any]]], new_tokens: int) -> dict[str, Any]:
    """Return what `engine_child` is told to serve batches of requests, each of which is prefilled together."""
    loads = [{"serve": "vision_load:serve_load", "requests": batch, "new_tokens": new_tokens} for batch in batches]
    arm = {"engine": engine, "loads": loads, "records": True, "state": [PATHS]}
    return {"before": ["engine_records:record_frames_of_calls", "vision_load:prefill_together"], "arms": [arm]}


def read(names: Iterable[str], arm: dict[str, Any]) -> dict[str, Any]:
    """Return what an arm gave: name to {answers, calls: how many frames each call of the tower had}, and "paths"."""
    batches = {
        name: {"answers": answers, "calls": [call["frames"] for call in calls]}
        for name, answers, calls in zip(names, arm["loads"], arm["records"], strict=True)
    }
    return batches | {"paths": arm["state"].get(PATHS, {})}


def prefill_together():
    """Prefill nothing until all requests of a batch have come, and then the shortest first.

    Requests come in the order in which their pictures are ready, so two runs of one batch can differ in it, and with it
    in bits of the logits: on a CPU, torch computes the last elements of a tensor, those that fill no two vectors, with
    the scalar tanh of the C library and all others with a vector's. A gate of the per-layer inputs has 8 elements per
    token in this toy, so with AVX-512 the last (tokens mod 4) rows of a prefill are computed so, whose ever they are.

    A file beside that of the records holds how many requests to wait for: `serve_load` writes it, and 0 stands there
    once they are prefilled.
    """
    from sglang.srt.managers.scheduler import Scheduler

    own, met, path = Scheduler.get_new_batch_prefill, set(), _awaited()

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


def _awaited() -> Path:
    return engine_records.record_file().with_name("awaited")


def serve_load(engine: Any, load: dict[str, Any]) -> list[dict[str, Any]]:
    """Serve what `load_of` made and return an answer for each request."""
    _awaited().write_text(str(len(load["requests"])))
    folder = engine.server_args.model_path

    async def gather():
        answers = [
            engine.async_generate(
                **prompt_of(request, folder),
                sampling_params={"temperature": 0, "ignore_eos": True, "max_new_tokens": load["new_tokens"]},
                return_logprob=True,
                top_logprobs_num=5,
            )
            for request in load["requests"]
        ]
        return await asyncio.gather(*answers, return_exceptions=True)

    return [result(one) for one in engine.loop.run_until_complete(gather())]


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
