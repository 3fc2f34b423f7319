"""Host leaves: CPU stand-ins for what exists for CUDA alone; only the host engine attaches them."""

from __future__ import annotations

from gemma4_runtime.catalog.origins import NO_UPSTREAM
from gemma4_runtime.patch import Bind, Edit, Hook, How, Kind, Patch

_AT = "gemma4_runtime.host"

HOST_LEAVES: tuple[Patch, ...] = (
    Patch(
        id="host-processes",
        kind=Kind.HOST_LEAF,
        title="fork worker processes instead of spawning them",
        origin="start-up time of the host engine",
        upstream="not needed: CUDA forbids fork",
        attachments=(Hook("engine.set_envs", How.AFTER, f"{_AT}.processes:fork_workers"),),
    ),
    Patch(
        id="host-sm100-check",
        kind=Kind.HOST_LEAF,
        title="pass the Blackwell check in server arguments",
        origin="ValueError: trtllm_mha needs Blackwell",
        upstream="not needed on a GPU",
        attachments=(Bind("server_args.is_sm100", f"{_AT}.device_checks:is_sm100_supported"),),
    ),
    Patch(
        id="host-cpu-config",
        kind=Kind.HOST_LEAF,
        title="accept a dense model in the CPU padding of MoE sizes",
        origin="TypeError: None % int in update_intermediate_size",
        upstream=NO_UPSTREAM,
        absorbed="0.5.23 or earlier, configs/update_config.py",
        attachments=(
            Hook("cpu_config.update_intermediate_size", How.AROUND, f"{_AT}.cpu_config:update_intermediate_size"),
        ),
    ),
    Patch(
        id="host-moe-gelu",
        kind=Kind.HOST_LEAF,
        title="Gemma-4's experts on a CPU, by SGLang's own torch form",
        origin="AssertionError: activation = gelu is not supported, in UnquantizedFusedMoEMethod.forward_cpu",
        upstream=NO_UPSTREAM,
        attachments=(Hook("moe.unquantized_native", How.AROUND, f"{_AT}.moe_gelu:forward_native"),),
    ),
    Patch(
        id="host-router-scale",
        kind=Kind.HOST_LEAF,
        title="the router's learned scale, which the torch form of its norm leaves out",
        origin="Gemma4RMSNorm.forward_native ignores the weight that Gemma4Router.fuse_scale writes (since #23280)",
        upstream="#32131, for a CPU",
        attachments=(Hook("gemma4.router", How.REPLACE, f"{_AT}.router_scale:forward"),),
    ),
    Patch(
        id="host-softcap",
        kind=Kind.HOST_LEAF,
        title="final logit softcapping in torch",
        origin="the Triton interpreter has no libdevice.tanh",
        upstream="not needed on a GPU",
        absorbed="0.5.23 or earlier, layers/logits_processor.py",
        attachments=(Bind("logits.softcap", f"{_AT}.softcap:softcap_inplace"),),
    ),
    Patch(
        id="host-draft-tree",
        kind=Kind.HOST_LEAF,
        title="draft tree construction and greedy verification in torch",
        origin="NameError: sgl_build_tree_kernel_efficient; verify_tree_greedy_func is a no-op on a CPU",
        upstream="not needed on a GPU",
        attachments=(
            Bind("eagle.build_tree", f"{_AT}.speculative_tree:build_tree"),
            Hook("eagle.verify_greedy", How.REPLACE, f"{_AT}.speculative_tree:verify_tree_greedy"),
        ),
    ),
    Patch(
        id="host-verify-slots",
        kind=Kind.HOST_LEAF,
        title="slots of a verification under spec v2 in torch",
        origin="assign_extend_cache_locs_func returns None on a CPU",
        upstream="not needed on a GPU",
        attachments=(Bind("eagle_v2.extend_cache_locs", f"{_AT}.verify_slots:assign_extend_cache_locs"),),
    ),
    Patch(
        id="host-tree-sampling",
        kind=Kind.HOST_LEAF,
        title="sampled verification of draft trees in torch",
        origin="NameError: top_k_renorm_prob, where a request under spec v2 has a temperature",
        upstream="not needed on a GPU",
        not_ported="0.5.23, verification is greedy on a CPU there, so nothing calls it",
        attachments=(
            Bind("eagle_v2.top_k_renorm", f"{_AT}.tree_sampling:top_k_renorm"),
            Bind("eagle_v2.top_p_renorm", f"{_AT}.tree_sampling:top_p_renorm"),
            Bind("eagle_v2.sample_tree", f"{_AT}.tree_sampling:sample_tree"),
        ),
    ),
    Patch(
        id="host-future-marks",
        kind=Kind.HOST_LEAF,
        title="no mark of the stream on what an overlapped step takes from the last one",
        origin="a CPU tensor has no record_stream: RuntimeError, unknown parameter type",
        upstream="not needed on a GPU",
        attachments=(
            Edit(
                "overlap.resolve_extras",
                "indices.record_stream(torch.get_device_module(self.device).current_stream())",
                "pass",
            ),
        ),
    ),
    Patch(
        id="host-grammar-mask",
        kind=Kind.HOST_LEAF,
        title="a grammar's mask of the vocabulary, by xgrammar's own CPU form",
        origin="RuntimeError: Unsupported device: cpu, where a request has a grammar",
        upstream="not needed on a GPU",
        attachments=(Hook("grammar.apply_mask", How.REPLACE, f"{_AT}.grammar_mask:apply_vocab_mask"),),
    ),
    Patch(
        id="host-alloc-kernels",
        kind=Kind.HOST_LEAF,
        title="paged allocation kernels in torch",
        origin="the Triton interpreter takes half of a step for them",
        upstream="not needed on a GPU",
        attachments=(
            Bind("alloc.extend_kernel", f"{_AT}.alloc_kernels:alloc_extend_kernel"),
            Bind("alloc.decode_kernel", f"{_AT}.alloc_kernels:alloc_decode_kernel"),
        ),
    ),
    Patch(
        id="host-flashinfer-names",
        kind=Kind.HOST_LEAF,
        title="names that the flashinfer backend module imports only with CUDA",
        origin="NameError at the construction of trtllm_mha's base class",
        upstream="not needed on a GPU",
        attachments=(
            Bind("flashinfer.decode_wrapper", f"{_AT}.flashinfer_names:HeldWrapper"),
            Bind("flashinfer.prefill_paged_wrapper", f"{_AT}.flashinfer_names:HeldWrapper"),
            Bind("flashinfer.prefill_ragged_wrapper", f"{_AT}.flashinfer_names:HeldWrapper"),
            Bind("flashinfer.fast_decode_plan", f"{_AT}.flashinfer_names:fast_decode_plan"),
        ),
    ),
    Patch(
        id="host-paged-attention",
        kind=Kind.HOST_LEAF,
        title="fp32 paged attention with a device model, in place of trtllm-gen kernels",
        origin="NameError: flashinfer; device models sm100 and sm90",
        upstream="not needed on a GPU",
        attachments=(
            Bind("trtllm.flashinfer", f"{_AT}.paged_attention:flashinfer"),
            Hook("swa.pool_init", How.AFTER, f"{_AT}.arena:after_pool_init"),
        ),
    ),
    Patch(
        id="host-eager-inputs",
        kind=Kind.HOST_LEAF,
        title="copy eager inputs through the input registry, as on CUDA with graphs off",
        origin="ModelRunner takes _eager_fb_view only for device cuda, which hides the stale out_cache_loc crash",
        upstream="not needed on a GPU",
        attachments=(
            Edit(
                "runner.forward_decode",
                'if not self.server_args.enable_pdmux and self.device == "cuda":',
                "if not self.server_args.enable_pdmux:",
            ),
            Edit(
                "runner.forward_extend",
                'if not self.server_args.enable_pdmux and self.device == "cuda":',
                "if not self.server_args.enable_pdmux:",
            ),
        ),
    ),
)
