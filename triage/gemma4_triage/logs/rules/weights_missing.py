"""The checkpoint cannot be read: it is not there, not allowed, or not complete."""

from __future__ import annotations

from gemma4_triage.finding import Confidence
from gemma4_triage.logs.rule import Wording, of_wordings, pattern

_WORDINGS = (
    Wording(
        pattern(
            r"(?i)harmony encoding|o200k_base|cl100k_base|tiktoken.{0,120}(?:download|request|connect|resolve)|"
            r"download(?:ing)? or load(?:ing)? vocab|vocab file.{0,80}(?:download|request|connect)|"
            r"openaipublic\.blob"
        ),
        "The vocabulary of Harmony (o200k_base.tiktoken) is not here, and its host cannot be reached.",
        "fetch o200k_base.tiktoken and cl100k_base.tiktoken where there is a network, and set TIKTOKEN_ENCODINGS_BASE "
        "to their folder (or mount a filled TIKTOKEN_RS_CACHE_DIR); or let the server reach its host",
    ),
    Wording(
        pattern(
            r"(?i)gated repo|access to model .* is restricted|401 Client Error|403 Client Error|Invalid credentials"
        ),
        "The repository of the weights is gated, and no token with access was given.",
        "accept the licence on the model's page, then set HF_TOKEN in the server's environment (docker: -e HF_TOKEN)",
    ),
    Wording(
        pattern(
            r"^(?:ConnectionError|ProtocolError|ReadTimeout|ReadTimeoutError|SSLError|ChunkedEncodingError|ConnectTimeout|"
            r"IncompleteRead|ClientPayloadError|ProxyError|MaxRetryError|ConnectionResetError)\b"
        ),
        "A download broke off: the network to the host of the checkpoint, or a proxy before it, closed the connection.",
        "fetch the whole checkpoint beforehand (hf download resumes), give its folder as --model-path and set "
        "HF_HUB_OFFLINE=1; HF_ENDPOINT names a mirror, HF_HUB_DOWNLOAD_TIMEOUT waits longer",
        frames=pattern(r"(?:file_download|_snapshot_download|hf_api|weight_utils|hub|_http)\.py:|.* http_get$"),
    ),
    Wording(
        pattern(r"429 (?:Client Error|Too Many Requests)|Too Many Requests for url|rate.?limit.{0,60}huggingface"),
        "The host of the checkpoint refused a download for too many requests, and a process ended without its file.",
        "a token (HF_TOKEN), or a local folder as --model-path with HF_HUB_OFFLINE=1; then start again",
    ),
    Wording(
        pattern(
            r"(?i)is not a local folder and is not a valid model identifier|Repository Not Found|"
            r"404 Client Error.{0,200}(?:huggingface|hf\.co|hf-mirror|modelscope|/resolve/)|"
            r"Incorrect path_or_model_id|Repo id must be"
        ),
        "The name of the model is neither a folder that the server sees nor a repository.",
        "check --model-path inside the container (mount the folder), and the spelling of the repository",
    ),
    Wording(
        pattern(
            r"(?i)Cannot find any model weights|No model weights found|does not appear to have a file named|"
            r"No such file or directory: '[^']*(?:safetensors|\.bin|config\.json|tokenizer)|Missing shard|"
            r"checkpoint shards? (?:is|are) missing"
        ),
        "A file of the checkpoint is missing: the download is incomplete, or the folder is another one.",
        "compare the folder with model.safetensors.index.json, and fetch what is missing",
    ),
    Wording(
        pattern(r"^JSONDecodeError"),
        "A JSON file of the checkpoint or its adapter is empty, cut short or no JSON, such as a page that a proxy "
        "sent.",
        "look at config.json, tokenizer_config.json and generation_config.json in the folder; fetch again what is "
        "damaged",
        frames=pattern(r"(?:decoder|hf_transformers_utils|configuration_utils|hub)\.py:"),
    ),
    Wording(
        pattern(r"Unrecognized model in .{0,200}Should have a `model_type`|Unrecognized configuration class"),
        "The config.json of the folder names no type of model that transformers knows.",
        "look into config.json: a folder of an adapter, of one modality or of another format (GGUF) is no checkpoint",
    ),
    Wording(
        pattern(
            r"GGUF model with architecture (?P<kind>[\w-]+) is not supported|Unknown gguf model_type: (?P<type>\S+)"
        ),
        "SGLang reads a GGUF through transformers, whose installed release does not know this architecture in it.",
        "the model's own safetensors, or a checkpoint of it in FP8, AWQ or GPTQ; a later transformers, if SGLang's "
        "pyproject allows it; llama.cpp serves GGUF",
    ),
    Wording(
        pattern(r"HeaderTooLarge|InvalidHeaderDeserialization|MetadataIncompleteBuffer|HeaderTooSmall|SafetensorError"),
        "A weight file is damaged or a Git LFS pointer: its header cannot be read.",
        "compare sizes and SHA-256 with the repository; fetch again (git lfs pull) what differs",
    ),
    Wording(
        pattern(
            r"(?i)(?:couldn't connect to|LocalEntryNotFoundError|Cannot (?:find|send) .* offline|"
            r"Failed to resolve 'huggingface)"
        ),
        "The checkpoint is not in the cache, and its host cannot be reached.",
        "fetch it where there is a network, then give the folder as --model-path; unset HF_HUB_OFFLINE if there is one",
    ),
)

RULE = of_wordings(
    "weights-missing",
    "the checkpoint cannot be read",
    _WORDINGS,
    Confidence.LIKELY,
    ruled_out_if=("another process of the same user reads the same path",),
    alarms=("no-start", "panic"),
)
