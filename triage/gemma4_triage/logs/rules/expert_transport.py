"""GPUs that cannot reach each other, for experts (DeepEP, NVSHMEM) or for sums: not set up, or failed."""

from __future__ import annotations

from gemma4_triage.finding import Confidence
from gemma4_triage.logs.rule import Wording, of_wordings, pattern

_WORDINGS = (
    Wording(
        pattern(r"peer access is not supported between"),
        "Some pairs of GPUs here cannot reach each other's memory (peer access), which the custom all-reduce needs.",
        "--disable-custom-all-reduce: NCCL then does the sums (NCCL_P2P_DISABLE=1 if it hangs); nvidia-smi topo -p2p r "
        "shows the pairs",
        frames=pattern(r"(?:\S*/)?\w*custom_all_reduce\w*\.py:"),
    ),
    Wording(
        pattern(r"(?i)(?:deep_?ep|nvshmem).{0,200}(?:peer access|P2P|IPC)|peer access is not supported between"),
        "DeepEP needs peer access between all GPUs of a host, and some pairs here have none.",
        "nvidia-smi topo -p2p r shows the pairs; --moe-a2a-backend none (or without DeepEP), or GPUs with NVLink "
        "between all",
    ),
    Wording(
        pattern(r"(?i)HANDLE_TYPE_FABRIC|mnnvl|(?:deep_?ep|nvshmem|cuMem\w+).{0,200}(?:fabric|NOT_SUPPORTED)"),
        "The transport of experts asked for memory that is shared over a fabric (MNNVL), which this host has not.",
        "switch that path off (allow_mnnvl False, SGLANG_IS_FLASHINFER_AVAILABLE=false), or another "
        "--moe-a2a-backend, or "
        "a later release of DeepEP and SGLang",
    ),
    Wording(
        pattern(
            r"(?i)^(?!.*NCCL error in).*ibv_\w+.{0,40}fail|(?:ep_connect|connect EPS|setup connections) failed|"
            r"nvshmem\w*.{0,80}fail|NVSHMEM API called before|nvshmem initialization failed"
        ),
        "NVSHMEM, which carries tokens to the experts of other GPUs, could not connect them: the InfiniBand or RoCE "
        "settings do not fit this network.",
        "NVSHMEM_IB_GID_INDEX (RoCE mostly 3), NVSHMEM_HCA_LIST and NVSHMEM_IB_ENABLE_IBGDA of this network, as NCCL "
        "has "
        "them; /dev/infiniband and memlock -1 in the container; once with --deepep-mode normal or --moe-a2a-backend "
        "none",
    ),
    Wording(
        pattern(r"(?i)DeepEP (?:error: )?(?:[\w ]{0,30})timeout|deep_ep.{0,80}timed? ?out"),
        "Ranks waited in DeepEP, which carries tokens to the experts of other GPUs, for one that did not come in time: "
        "it died, hangs, or compiles a kernel (DeepGEMM) that the others have.",
        "the log of every rank and node at that time: the first other exception, or a rank that compiles. Compile "
        "before serving (python3 -m sglang.compile_deep_gemm with the same arguments, ~/.cache on a volume); once with "
        "--moe-a2a-backend none",
    ),
    Wording(
        pattern(r"(?i)Unsupported (?:hidden|num_topk|ranks|num_local_experts)|Unsupported number of|hidden % \w+ == 0"),
        "This build of DeepEP, which carries tokens to the experts of other GPUs, has no kernel for the model's hidden "
        "size, experts or that many ranks.",
        "a later DeepEP, built for them (the image of a later release of SGLang); --deepep-mode normal where only its "
        "low-latency kernels lack them; else --moe-a2a-backend none or another one",
    ),
    Wording(
        pattern(r"(?i)deep_?ep.{0,200}kBFloat16"),
        "DeepEP carries bfloat16 alone, and the model runs in another type.",
        "--dtype bfloat16",
    ),
    Wording(
        pattern(
            r"(?i)deep_?ep\.cpp|DeepEP/csrc|DeepEP (?:error|timeout)|deep_ep.{0,80}(?:timed? ?out|fail)|"
            r"rocshmem.{0,80}fail"
        ),
        "DeepEP, which carries tokens to the experts of other GPUs, failed.",
        "once with --moe-a2a-backend none; the releases of DeepEP, NVSHMEM and SGLang have to fit, as SGLang's image "
        "has "
        "them; SGLANG_DEEPEP_NUM_MAX_DISPATCH_TOKENS_PER_RANK has to cover a step's tokens",
    ),
)
RULE = of_wordings(
    "expert-transport",
    "GPUs cannot reach each other, for experts or for sums",
    _WORDINGS,
    Confidence.LIKELY,
    settings=("moe_a2a_backend", "ep_size", "tp_size", "nnodes"),
    ruled_out_if=("it dies alike with --moe-a2a-backend none --disable-custom-all-reduce",),
    alarms=("nvshmem", "device"),
)
