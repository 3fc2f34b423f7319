"""Python packages that do not fit each other, the model or the GPU: one is missing, too old, or built for others."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace

from gemma4_triage.finding import Confidence, Finding
from gemma4_triage.logs.facts import LogFacts
from gemma4_triage.logs.rule import Wording, of_wordings, pattern, remarked

BUILDS = pattern(r"(?i)ninja build failed|ninja exited with status|Command '\['ninja'|Error building extension")
_PINNED_TRANSFORMERS = (
    "pip show transformers sglang; upgrade SGLang together with the transformers of its pyproject, or take its image; "
    "of SGLang's main branch take a release instead"
)
_WORDINGS = (
    Wording(
        pattern(
            r"Couldn't instantiate the backend tokenizer|Tokenizer class \S+ (?:does not exist|is not)|"
            r"TokenizersBackend"
        ),
        "The checkpoint's tokenizer cannot be built by the class that was asked for: its tokenizer_config.json and the "
        "installed transformers do not fit each other.",
        "look at tokenizer_class in tokenizer_config.json (PreTrainedTokenizerFast reads a tokenizer.json), and take "
        "an SGLang of the transformers that wrote it",
    ),
    Wording(
        pattern(r"untagged enum ModelWrapper"),
        "The checkpoint's tokenizer.json was written by later tokenizers than are installed.",
        "pip install -U tokenizers transformers, of the releases in SGLang's pyproject; or take SGLang's image",
    ),
    Wording(
        pattern(
            r"has no SGlang implementation|Unsupported architectures: |"
            r"Model architectures .{0,200}not supported for now",
            re.IGNORECASE,
        ),
        "This release of SGLang has no code for the model's architecture, as its config.json names it.",
        "a later release, or a model of the list of supported ones; a reranker or an embedding model may need "
        "--is-embedding; an adapter or a draft is no model by itself",
    ),
    Wording(
        pattern(
            r"Transformers does not recognize this architecture|KeyError: '(?:gemma\d\w*|gpt_oss\w*)'|"
            r"cannot import name '\w+' from 'transformers|has no attribute 'Gemma\w+Config'"
        ),
        "The installed transformers is not of the release that this SGLang or this model needs.",
        _PINNED_TRANSFORMERS,
    ),
    Wording(
        pattern(r"is a per-layer attribute and may vary across layers"),
        "The installed transformers (5.15 or later) keeps sizes of attention heads per layer, and this SGLang asks "
        "the model's config for one of all layers.",
        "pip install the transformers that SGLang's pyproject names, in the server's own environment, or take a later "
        "release of SGLang",
    ),
    Wording(
        pattern(
            r"(?P<package>[\w.-]+) (?:is installed with version (?P<found>\S+?),|with minimum required version)|"
            r"No package metadata was found for (?P<lacking>[\w.-]+)"
        ),
        "A package is missing or older than this SGLang asks for, as the line says: {package}{lacking} {found}.",
        "reinstall it in the server's own environment, of the release in SGLang's pyproject (flashinfer has gone by "
        "the names flashinfer and flashinfer_python); pip list shows who else asks for another one",
    ),
    Wording(
        pattern(r"^KeyError: "),
        "The installed transformers does not know the kind of model that config.json names.",
        _PINNED_TRANSFORMERS,
        frames=pattern(r"(?:configuration|modeling|processing|tokenization)_auto\.py:"),
    ),
    Wording(
        pattern(r"^AssertionError"),
        "Kernels are compiled on this machine, and no CUDA toolkit was found to compile them with.",
        "install nvcc of torch's CUDA and set CUDA_HOME to its folder, or take SGLang's image; "
        "SGLANG_ENABLE_JIT_DEEPGEMM=0 leaves DeepGEMM out",
        frames=pattern(r".* \w*find_cuda_home$"),
    ),
    Wording(
        pattern(r"is not defined for option 'gpu-name'"),
        "The assembler that Triton brings along (ptxas) is older than this GPU and does not know its architecture.",
        "TRITON_PTXAS_PATH=/usr/local/cuda/bin/ptxas of a CUDA toolkit that knows the GPU (13.0 for sm_103, sm_110, "
        "sm_121; 12.8 for sm_100, sm_120); or a later triton, or SGLang's image for this GPU",
    ),
    Wording(
        pattern(r"Command '\['[^']*(?:gcc|g\+\+|cc|clang)'.*returned non-zero"),
        "A small module of Triton's, in C, did not compile on this machine: headers of Python or the driver's library "
        "lack.",
        "apt install build-essential python3-dev (of this Python), libcuda.so.1 where the linker looks (it comes with "
        "the driver); the compiler's own lines above say which; or SGLang's image",
    ),
    Wording(
        pattern(r"not supported on \.target|Internal Triton PTX codegen error"),
        "A kernel uses instructions that this GPU's architecture lacks.",
        "another --moe-runner-backend or --attention-backend, or a release with kernels for this GPU; compute_cap in "
        "nvidia-smi names it",
    ),
    Wording(
        pattern(
            r"Could not run '[\w:.]+' with arguments from the '\w+' backend|not currently (?:supported|implemented) "
            r"(?:on|for) the \w+ (?:backend|device)"
        ),
        "An operator that the model needs has no implementation for this device.",
        "a release of SGLang for this device that serves the model, or a GPU that the operator is for",
    ),
    Wording(
        pattern(
            r"operator torchvision::\w+ does not exist|module 'torch\.\w+' has no attribute|"
            r"numpy\.core\.multiarray failed|compiled using NumPy 1"
        ),
        "torch or numpy is of another release than a package that was built on it: torchvision, sglang-kernel, OpenCV.",
        "install torch, torchvision and torchaudio of one release together, as SGLang's pyproject names them; where it "
        "names numpy: numpy below 2, or a later opencv-python-headless",
    ),
    Wording(
        pattern(r"undefined symbol|DLL load failed|version `(?:GLIBC|CXXABI)|symbol lookup error|ABI"),
        "Two wheels were built against different releases of torch or of the system's libraries.",
        "reinstall sglang-kernel, flashinfer and torch together, of the releases that SGLang's pyproject names, in a "
        "fresh environment; or take SGLang's image",
    ),
    Wording(
        pattern(
            r"\b(?P<library>lib(?!cu|nv|torch|c10|nccl|rocm|amdhip|hip)[\w+.-]+\.so[\w.]*): cannot open shared object"
        ),
        "The system's library {library} is missing, so that a wheel that needs it cannot be loaded. The wheel itself "
        "is whole: to install it again does not help.",
        "install the package of {library} with the system's package manager, in the image (apt-get, dnf; apt-file "
        "search {library} names it; libnuma.so.1 is of libnuma1, libGL.so.1 of libgl1)",
    ),
    Wording(
        pattern(r"cannot open shared object file|libcud\w+\.so"),
        "A library of CUDA or of another wheel is missing: this wheel was built for another CUDA than is installed.",
        "hold the library's number against torch.version.cuda, and take the wheels or the image of that CUDA; "
        "libcuda.so.1 comes with the driver (docker: --gpus all)",
    ),
    Wording(
        pattern(
            r"(?i)ninja is required|Failed to find C compiler|Command '\['[^']*(?:gcc|g\+\+|cc)'|"
            r"nvcc.{0,40}(?:not found|No such file)|CUDA_HOME environment variable is not set|"
            r"Could not find (?:nvcc|CUDA)|NV(?:CC|RTC) compilation failed|nvcc fatal|"
            r"Unsupported gpu architecture|ptxas (?:fatal|error)|"
            r"PTXAS error|No such file or directory: '(?:\S*/)?(?:ninja|nvcc|gcc|g\+\+|cc|c\+\+|ptxas)'"
        ),
        "A kernel is compiled on this machine, and its compiler is missing or does not know this GPU.",
        "install nvcc and ninja of torch's CUDA and set CUDA_HOME (images bring them; Blackwell needs 12.9 or later), "
        "or TRITON_PTXAS_PATH to a newer ptxas; SGLANG_ENABLE_JIT_DEEPGEMM=0 leaves DeepGEMM out, flashinfer-jit-cache "
        "compiles nothing here",
    ),
    Wording(
        BUILDS,
        "A kernel that is compiled on this machine did not compile: the CUDA toolkit, torch and the package whose "
        "source it is do not fit each other, or the compiler lacks headers.",
        "nvcc --version has to be of torch.version.cuda and know this GPU, with its headers (cuda-toolkit, not the "
        "runtime alone); then rm -r ~/.cache/flashinfer ~/.cache/torch_extensions, or SGLang's image; another "
        "--attention-backend (triton) needs no nvcc",
    ),
    Wording(
        pattern(r"'(?P<of>\w+Config)' object has no attribute '(?P<field>\w+)'"),
        "The model's {of} has no {field}, which this SGLang reads: the installed transformers, or the model's own "
        "code (--trust-remote-code), is of another release than this one was written for, or SGLang does not know the "
        "model.",
        "pip install the transformers that SGLang's pyproject names (5.x dropped defaults that older code relied on); "
        "a later release of SGLang; the model's card says with which releases its own code runs",
    ),
    Wording(
        pattern(r"No processor registered for architecture: \[(?P<model>[^\]]+)\]"),
        "This release has no processor of images or sound for {model}, or could not import the one that it has.",
        "an earlier 'Ignore import error' line says which package its processor lacks: install that one for this GPU, "
        "or take an image that is built for it; else a later release. Without images: --language-only, where the "
        "release has it, or a model of text alone",
    ),
    Wording(
        pattern(r"module '(?P<module>(?!sglang\b)\w+)[\w.]*' has no attribute '(?P<name>\w+)'"),
        "The installed {module} has no {name}, which this SGLang asks for: it is another release of it, another "
        "package of the same name, or one that lies beside the one that sglang-kernel brings along.",
        "pip list: hold {module} against the releases in SGLang's pyproject, and uninstall one that SGLang does not "
        "name (deep_gemm, for instance, comes with sglang-kernel); a fresh environment or SGLang's image has the right "
        "ones",
    ),
    Wording(
        pattern(r"cannot import name '(?P<name>\w+)' from '(?P<module>(?P<package>[\w]+)[\w.]*)'"),
        "The installed {package} has no {name} in {module}, which another package or program asks for: two releases "
        "that do not know each other's names.",
        "pip list: hold {package} against what the asking side names (the frame above; SGLang's pyproject): "
        "another release of {package}, or of the package that asks",
    ),
    Wording(
        pattern(
            r"cannot import name '\w+' from|(?:Wrapper|flashinfer|xgrammar|"
            r"GrammarCompiler)[\w.]*\(\) got an "
            r"unexpected keyword argument"
        ),
        "Two packages are of releases that do not know each other's names.",
        "hold pip list against the releases in SGLang's pyproject: transformers, flashinfer, sglang-kernel, torch",
    ),
    Wording(
        pattern(
            r"[Pp]lease (?:install|upgrade) (?:the )?(?P<package>[\w.-]+(?: (?:library|package))?)|"
            r"(?P<needed>[\w.-]+) is required for [^.]{3,60}\. Please install|"
            r"requires a newer version of (?P<newer>[\w.-]+)|requires the \w+ library but it was not found|"
            r"requires [\"'`](?P<asked>[\w.-]+)[\"'`] to be installed"
        ),
        "A package that the server needs for what it was asked to do is missing or too old.",
        "install it as the line says, in the server's own environment, of the release in SGLang's pyproject; or leave "
        "out the argument that needs it",
    ),
    Wording(
        pattern(r"No module named '(?P<module>resource|fcntl|pwd|grp|termios)'"),
        "Python has its module {module} on Linux and macOS alone: SGLang does not run on Windows itself.",
        "run it under WSL 2 or in SGLang's image, in Docker; there is no package of that name to install",
    ),
    Wording(
        pattern(
            r"No module named '(?:sgl_kernel|flashinfer|sglang|transformers|triton|xgrammar|vllm|torchvision|"
            r"torchaudio|timm|librosa|(?!common_ops)\w+)'"
        ),
        "A Python package that the server imports is not installed.",
        "pip install the package that the line names, of the release in SGLang's pyproject",
    ),
)
_TYPES = (
    "",
    "Exception",
    "PackageNotFoundError",
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
    "AmbiguousGlobalPerLayerAttributeError",
    "PTXASError",
    "CompilationError",
    "KeyError",
    "ValueError",
    "AttributeError",
    "RuntimeError",
)

_OF_WORDINGS = of_wordings(
    "wheels-do-not-fit",
    "packages do not fit each other, the model or the GPU",
    _WORDINGS,
    Confidence.LIKELY,
    types=_TYPES,
    ruled_out_if=("python -c 'import sgl_kernel, flashinfer' works in the server's own environment",),
    next_commands=("gemma4-triage doctor",),
    alarms=("device", "library"),
)


def _find(facts: LogFacts) -> Iterator[Finding]:
    for finding in _OF_WORDINGS.find(facts):
        builds = any(BUILDS.search(str(one.value)) for one in finding.evidence)
        compiler = remarked(facts, "compiler", "what the compiler said last") if builds else []
        lacks = any("No processor registered" in str(one.value) for one in finding.evidence)
        lacking = remarked(facts, "not_imported", "what could not be imported") if lacks else []
        yield finding.model_copy(update={"evidence": (*finding.evidence, *compiler, *lacking)})


RULE = replace(_OF_WORDINGS, find=_find)
