"""SGLang's arguments for the committed toys on this CPU, as the engine tests and the makers of samples use them."""

from gemma4_repro.toys.locate import toy_path

ENGINE = {
    "model_path": str(toy_path("toy-e4b")),
    "device": "cpu",
    "dtype": "float32",
    "attention_backend": "trtllm_mha",
    "page_size": 16,
    "swa_full_tokens_ratio": 0.4,
    "max_total_tokens": 2560,
    "max_running_requests": 8,
    "disable_cuda_graph": True,
    "disable_overlap_schedule": True,
    "sampling_backend": "pytorch",
    "grammar_backend": "none",
}
ENGINE_26B = ENGINE | {"model_path": str(toy_path("toy-26b"))}
MTP = {
    "speculative_algorithm": "NEXTN",
    "speculative_draft_model_path": str(toy_path("toy-e4b-assistant")),
    "speculative_num_steps": 3,
    "speculative_eagle_topk": 1,
    "speculative_num_draft_tokens": 4,
}
MTP_26B = MTP | {"speculative_draft_model_path": str(toy_path("toy-26b-assistant"))}
