"""Python packages that do not fit each other, the model or the GPU: one is missing, too old, or built for others."""

from __future__ import annotations

import re

from gemma4_triage.finding import Confidence
from gemma4_triage.logs.rule import Wording, of_wordings

_WORDINGS = (
    Wording(
        re.compile(
            r"Couldn't instantiate the backend tokenizer|Tokenizer class \S+ (?:does not exist|is not)|"
            r"TokenizersBackend"
        ),
        "The checkpoint's tokenizer cannot be built by the class that was asked for: its tokenizer_config.json and the "
        "installed transformers do not fit each other.",
        "look at tokenizer_class in tokenizer_config.json (PreTrainedTokenizerFast reads a tokenizer.json), and take "
        "an SGLang of the transformers that wrote it",
    ),
    Wording(
        re.compile(
            r"Transformers does not recognize this architecture|KeyError: '(?:gemma\d\w*|gpt_oss\w*)'|"
            r"cannot import name '\w+' from 'transformers|has no attribute 'Gemma\w+Config'"
        ),
        "The installed transformers is not of the release that this SGLang or this model needs.",
        "pip show transformers sglang; upgrade SGLang together with the transformers that its pyproject pins, "
        "as its images do",
    ),
    Wording(
        re.compile(r"not supported on \.target|Internal Triton PTX codegen error"),
        "A kernel uses instructions that this GPU's architecture lacks.",
        "another --moe-runner-backend or --attention-backend, or a release with kernels for this GPU; compute_cap in "
        "nvidia-smi names it",
    ),
    Wording(
        re.compile(
            r"Could not run '[\w:.]+' with arguments from the '\w+' backend|not currently (?:supported|implemented) "
            r"(?:on|for) the \w+ (?:backend|device)"
        ),
        "An operator that the model needs has no implementation for this device.",
        "a release of SGLang for this device that serves the model, or a GPU that the operator is for",
    ),
    Wording(
        re.compile(
            r"(?i)no (?:CUDA )?kernel image is available|sm_\d+ is not compatible with the current PyTorch|"
            r"PTX was compiled with an unsupported"
        ),
        "A wheel has no kernel for this GPU: it was built for other architectures, or for a newer driver.",
        "hold torch.cuda.get_device_capability() against torch.cuda.get_arch_list(); take an image for this GPU",
    ),
    Wording(
        re.compile(r"undefined symbol|version `(?:GLIBC|CXXABI)|symbol lookup error|ABI"),
        "Two wheels were built against different releases of torch or of the system's libraries.",
        "reinstall sglang-kernel, flashinfer and torch together, of the releases that SGLang's pyproject names",
    ),
    Wording(
        re.compile(r"\blib(?!cu|nv|torch|c10|nccl|ib|rdma)[\w+-]+\.so[\w.]*: cannot open shared object file"),
        "A library of the system is missing, so that a wheel that needs it cannot be loaded. The wheel itself "
        "is whole.",
        "install the system's package of the library that the line names (libnuma.so.1: apt-get install libnuma1)",
    ),
    Wording(
        re.compile(
            r"cannot open shared object file|libcud\w+\.so|CUDA driver version is insufficient|"
            r"driver on your system is too old"
        ),
        "A library of CUDA is missing, or the driver is older than the one that torch was built for.",
        "nvidia-smi shows the driver's CUDA; take the wheel or image of that CUDA, or a newer driver",
    ),
    Wording(
        re.compile(
            r"(?i)ninja is required|ninja build failed|Command '\['[^']*(?:gcc|g\+\+|cc)'|"
            r"nvcc.{0,40}(?:not found|No such file)|CUDA_HOME environment variable is not set|"
            r"Could not find (?:nvcc|CUDA)|Command '\['ninja'|Error building extension|ptxas (?:fatal|error)|"
            r"PTXAS error|No such file or directory: '(?:\S*/)?(?:ninja|nvcc|gcc|g\+\+|cc|c\+\+|ptxas)'"
        ),
        "A kernel is compiled on this machine, and its compiler is missing or does not know this GPU.",
        "install nvcc and ninja of torch's CUDA (images bring them), or TRITON_PTXAS_PATH to a newer ptxas",
    ),
    Wording(
        re.compile(
            r"cannot import name '\w+' from|module '(?:sgl_kernel|flashinfer|triton|torch|transformers|"
            r"xgrammar)[\w.]*' has no "
            r"attribute|'\w+Config' object has no attribute|(?:Wrapper|flashinfer|xgrammar|"
            r"GrammarCompiler)[\w.]*\(\) got an "
            r"unexpected keyword argument"
        ),
        "Two packages are of releases that do not know each other's names.",
        "hold pip list against the releases in SGLang's pyproject: transformers, flashinfer, sglang-kernel, torch",
    ),
    Wording(
        re.compile(
            r"No module named '(?:sgl_kernel|flashinfer|sglang|transformers|triton|xgrammar|vllm|torchvision|"
            r"torchaudio|timm|librosa|\w+)'"
        ),
        "A Python package that the server imports is not installed.",
        "pip install the package that the line names, of the release in SGLang's pyproject",
    ),
)
_TYPES = (
    "",
    "AcceleratorError",
    "InductorError",
    "ImportError",
    "ModuleNotFoundError",
    "NotImplementedError",
    "OSError",
    "FileNotFoundError",
    "TypeError",
    "CalledProcessError",
    "AssertionError",
    "PTXASError",
    "CompilationError",
    "KeyError",
    "ValueError",
    "AttributeError",
    "RuntimeError",
)

RULE = of_wordings(
    "wheels-do-not-fit",
    "packages do not fit each other, the model or the GPU",
    _WORDINGS,
    Confidence.LIKELY,
    types=_TYPES,
    ruled_out_if=("python -c 'import sgl_kernel, flashinfer' works in the server's own environment",),
    next_commands=("gemma4-triage doctor",),
    alarms=("device", "library"),
)
