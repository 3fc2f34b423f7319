"""Names or shapes in the checkpoint are not those of the model class, mostly for how it was quantised."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import replace

from gemma4_triage.finding import Confidence, Finding
from gemma4_triage.logs.facts import Death, LogFacts, Remark
from gemma4_triage.logs.late_pattern import pattern
from gemma4_triage.logs.layer_kept_whole import before_a_torn_end
from gemma4_triage.logs.rule import at, of_death, of_failure, of_settings, remarked
from gemma4_triage.logs.rules import quantised_kernel
from gemma4_triage.logs.weights_sent import is_of_another_size, of_another_size

_NAME = pattern(
    r"'?[\w.]*(?:layers|blocks|experts)\.\d+\.[\w.]+'?|"
    r"'[\w.]+\.(?:weight|bias|qweight|qzeros|scales|g_idx|\w*_scale\w*|weight_\w+)'"
)
_ONLY_A_NAME = pattern(
    r"KeyError: '(?:[\w.]+\.)?(?:layers|blocks)\.\d+\.[\w.]+'|"
    r"KeyError: '[\w.]+\.(?:weight|bias|qweight|qzeros|scales|g_idx|\w*_scale\w*|weight_\w+)'|"
    r"AssertionError: Tried to load weights of size .*"
)
_CONFLICT = pattern(
    r"(?i)Quantization method .{0,80}does not match|Unknown quantization method|Invalid quantization method|"
    r"quantization method .{0,60}is not supported|Cannot find the config file for \w+"
)
_UNKNOWN = pattern(r"Unknown quantization method: ([\w-]+)")
_NOT_READ = (
    "a later release of SGLang, or the same model in AWQ, GPTQ, FP8 or NVFP4; a copy of auto-round can be exported as "
    "GPTQ or AWQ"
)
_NAMED_SO = (
    ("int8", "w8a8_int8 (one scale for each channel) or blockwise_int8 (for each block)"),
    ("w4a8", "w4afp8"),
    ("fp8", "fp8 or w8a8_fp8"),
    ("awq", "awq or awq_marlin"),
    ("gptq", "gptq or gptq_marlin"),
)
"""What names of checkpoints say of how they were quantised."""
_SHAPE = pattern(
    r"(?i)size mismatch for|param.{0,40}shape.{0,40}loaded_weight|loaded_weight.shape|loaded weight .{0,60}shape|"
    r"size of tensor a \(\d+\) must match the size of tensor b|split_with_sizes expects|"
    r"number of sizes provided|is invalid for input of size|expanded size of the tensor|start \(\d+\) \+ length"
)
_LOADS = pattern(
    r".*\b(?:load_weights|weight_loader|_load_w\d+\w*|_load_\w*weight\w*|default_weight_loader|load_(?:column_parallel|row_parallel|merged_column|qkv)_weight|"
    r"_handle_\w*param\w*|_?(?:permute|remap|convert|shard|split|fuse)_?\w*weights?\w*|load_\w*experts?\w*)\w*$"
)

# As vLLM says it.
_NO_PLACE = pattern(r"There is no module or parameter named '[\w.]+' in \w+")
_UNKNOWN_TO = pattern(r"(?<=named )'[\w.]+'")
_LACKED = pattern(r"weights (?:were|are) not initialized from (?:the )?checkpoints?: (.{0,120})")
_TIES = pattern(r"gemma\w*\.py:")
_AS_COPIES_KEEP_IT = ". Quantised copies keep it often."
_NO_HEAD = (
    ", or it is another class than the checkpoint's own, as where a release knows a model by its name on the hub alone."
)
_BY_ITS_NAME = (
    "where --model-path is a folder: once by the model's name on the hub (or the folder named as the repository is): "
    "if that loads, this release takes another class for the folder, and a later one goes by config.json"
)
_TIED = "a later release, which passes that weight over; or a copy whose config.json says tie_word_embeddings false"


def _explains(death: Death) -> bool:
    said = f"{death.type_name}: {death.message}"
    if _CONFLICT.search(said) or _LACKED.search(said):
        return True
    if quantised_kernel.RULE.explains(death):
        return False
    loading = any(_LOADS.match(frame) for frame in death.frames)
    named = death.type_name == "KeyError" and _NAME.search(said) is not None
    if _NO_PLACE.search(said) or _other_kind(death):
        return True
    return (
        (
            loading
            and "lora_" not in said
            and (named or bool(_SHAPE.search(said)) or death.type_name == "AssertionError")
        )
        # People quote the last line alone.
        or (not death.frames and _ONLY_A_NAME.fullmatch(said.removeprefix(": ")) is not None)
    )


_PART_OF_MEDIA = pattern(r"'(?:\w+\.)*(?:vision|visual|vit|image|audio|speech|video|mm)\w*\.[\w.]+'")
_OF_TEXT_ALONE = pattern(
    r"(?:chatglm|llama|qwen[23]?(?:_moe)?|glm4(?:_moe)?|deepseek(?:_v2)?|mistral|mixtral|gemma2?|\w+_causal|phi|phi3_small|"
    r"internlm2|baichuan|minicpm3?|olmo2?|granite|commandr|dbrx|stablelm|exaone|gpt2|gpt_oss|xverse(?:_moe)?)\.py:\d+ "
    r"load_weights$"
)


def _other_kind(death: Death) -> bool:
    """Say whether a class of text alone was given a part of the checkpoint that reads images or sounds."""
    return (
        death.type_name == "KeyError"
        and death.path.startswith("models/")
        and _PART_OF_MEDIA.search(death.message) is not None
        and _OF_TEXT_ALONE.match(death.frame) is not None
        # Of a class with images the one of text is a part, and is called by it.
        and sum(frame.endswith(" load_weights") for frame in death.frames) == 1
    )


_OF_QUANTISED = pattern(
    r"(?:\.|_)(?:weight_scale\w*|weight_packed|weight_shape|weight_zero_point|qweight|qzeros|scales|g_idx|input_scale\w*|"
    r"\w*global_scale|[kvqo]_scale|w\d+_(?:weight|scale|qweight)\w*)$"
)
_TWICE = pattern(r"\b([a-z]+_)\1")
_NESTED = pattern(r"\b([a-z]\w*\.)\1")
_AS_MADE = pattern(r"experts\.w(?:13|2)_weight$")
_OF_A_DRAFT = pattern(r"(?:model\.)?(?:midlayer\.|fc\.|d2t|t2d|eh_proj|enorm|hnorm)")
_AS_A_DRAFT = (
    "give it as --speculative-draft-model-path beside the whole model's --model-path, with --speculative-algorithm "
    "EAGLE3 (or EAGLE); architectures in its config.json has to name the class of a draft (LlamaForCausalLMEagle3)"
)
_AS_AN_EMBEDDING = (
    "--is-embedding, if it is a model for embeddings or a reranker; else a later release, which maps such names"
)
_QUOTED = 160  # characters
_PACKED = (
    "a later release of SGLang, or the last one with which it loaded: its code of this model splits or fuses such "
    "weights and scales otherwise"
)
_LATER_CLASS = (
    "a later release of SGLang, whose class of this model knows such names: a checkpoint that is newer than the "
    "release, or of a variant of the family, names its weights otherwise; else a checkpoint of a class that this has"
)
_LATER = "a later release of SGLang, whose class of this model knows such names; until then the model not quantised"


_SPLIT_NAME = pattern(r"(?:_proj|experts?|w[123]|gate|up|down)_(?:packed|scale\w*|blocks|shape|weight_\w+|zero_point)$")
_OTHER_LOADER = (
    "another release: a later one, or the one (or tag) with which this checkpoint loaded: its loader lost the name as "
    "another was added; the checkpoint is seldom at fault"
)
_FUSED_SCALE = pattern(r"\bqkv_proj\.[kv]_scale$")
_BY_ANOTHER = (
    "another release: a later one, whose loader of this class maps scales of the KV cache, or the last with which this "
    "checkpoint loaded; --quantization changes nothing there",
    "until then a copy without such scales (made without a quantised KV cache; kv_cache_scheme in its config.json)",
)
_OF_ANY_LAYER = pattern(r"(?:layers|blocks)\.\d+\.")
_SAVED_INSIDE = (
    "the copy of another maker, or the publisher's; or save it anew with a later release of the tool that wrote it, or "
    "take that part out of the names in its files and its index"
)
_OTHER_FORM = (
    "the publisher's own checkpoint, in its own form (of gpt-oss MXFP4), or a copy whose config.json says how its "
    "experts are packed",
    "a later release of SGLang, whose class of this model knows such names, packed or whole; until then the model not "
    "quantised, where it is the copy that packs them",
)
_STAGES = (
    "--pp-size 1, with --tp for the other GPUs: the loader of this class then meets its own layers alone",
    "a later release, whose loader passes over what is another stage's",
)
_OF_A_WHOLE = ("language_model.", "model.language_model.")
_TEXT_ALONE = pattern(r"\w+_causal\.py:")
_AS_A_WHOLE = (
    "architectures in config.json, with the rest of that file, as the base model's publisher has it "
    "(Gemma3ForConditionalGeneration): fine-tuning mostly saves the class that it loaded; or save the fine-tune again",
)
_OF_BLOCKS = (
    "config.json has to say how the checkpoint is quantised (quantization_config, of the publisher's file): put it "
    "back where somebody took it out",
    "a --tp whose shares the blocks divide, or --ep, where that was why it was taken out",
)


_OF_DRAFTS = pattern(r"\b(?:mtp_block|mtp_layers?|nextn)\b.*\bshared_experts?\b")
_BLOCK_OF_DRAFTS = (
    " It is a shared expert in the block of drafts (MTP) that the checkpoint brings along: that block's class has "
    "none, as where shared experts are fused with the routed ones."
)
_NOT_FUSED = (
    "shared experts that are not fused (SGLang: --disable-shared-experts-fusion; vLLM: "
    "VLLM_ROCM_USE_AITER_FUSION_SHARED_EXPERTS=0), or once without drafts"
)


def _why(name: str, quantised: bool, staged: bool = False, unnamed: bool = False, of_text: bool = False) -> str:
    """Return what a name that is not known tells of its origin, as a further sentence; "" if it tells nothing.

    Args:
        name: of the weight.
        quantised: whether the start names a method that packs layers.
        staged: whether the model is split into stages (--pp-size).
        unnamed: whether the start names no method of quantisation.
        of_text: whether the class that loads it is one of text alone.
    """
    if _OF_DRAFTS.search(name):
        return _BLOCK_OF_DRAFTS
    if staged and _OF_ANY_LAYER.search(name):
        return " With --pp-size each stage has some of the layers, and this one met a weight of another stage's."
    if unnamed and name.endswith("_scale_inv"):
        return " It is a scale of FP8 blocks, and neither config.json nor the start says that the copy is quantised so."
    if _TWICE.search(name):
        return " A part of the name stands there twice: the release's loader renamed it twice, which is its defect."
    if nested := _NESTED.search(name):
        return (
            f" {nested[1]} stands there twice: the copy was saved from inside another class, of which it has the name."
        )
    if _AS_MADE.search(name):
        return (
            " Experts of that name are whole ones, and this class made its experts for another form: packed ones (of "
            "MXFP4, AWQ, GPTQ) where the checkpoint has none, or the other way round."
        )
    if quantised and name.endswith(".weight"):
        return (
            " It is a plain weight, which the checkpoint left out of its quantisation, and this class packed that "
            "layer: it does not map the checkpoint's list of such layers."
        )
    if _OF_A_DRAFT.match(name):
        return " It is of a draft (EAGLE), which was given to the class of a whole model."
    if _FUSED_SCALE.search(name):
        return (
            " No checkpoint has it: the loader of this build made that name, as it put a scale of the KV cache "
            "(k_proj.k_scale) under the fused projection, and not under the attention that keeps it."
        )
    if _OF_QUANTISED.search(name):
        return (
            " It is of a quantised copy: the method was not recognised, or this class does not serve it so quantised."
        )
    if _SPLIT_NAME.search(name):
        return (
            " It is a packed weight of one expert or layer: such names are put together by the loader, which in this "
            "build does not know them in that form (with a dot or an underscore, packed or whole)."
        )
    if _OF_MISTRAL.match(name):
        return (
            " It is named as in the publisher's other format (consolidated.safetensors beside params.json, as "
            "Mistral's folders have it), which lies in the same folder and which this release's loader reads too."
        )
    if name.startswith(("embed_tokens.", "layers.", "norm.")):
        return (
            " Its name lacks the prefix of a language model, as that of an encoder or a model for embeddings does, or "
            "of a copy that was saved without its head."
        )
    if name.startswith(_OF_A_WHOLE) and of_text:
        return (
            " It is named as in the class with images (…ForConditionalGeneration), and the class of text alone was "
            "taken (…ForCausalLM), as config.json says."
        )
    return ""


_OF_MISTRAL = pattern(r"layers\.\d+\.(?:attention\.w[qkvo]|feed_forward\.w[123]|attention_norm|ffn_norm)\.")
_ONE_FORMAT = (
    "a folder with one format alone: leave consolidated*.safetensors out (hf download --exclude 'consolidated*', or "
    "move it away), so that model-*.safetensors of transformers' form are read; else a later release, whose loader "
    "reads those that the index names"
)
_IN_BYTES = pattern(r"torch\.Size\(\[\d{5,}, 1\]\)")
_OF_BITSANDBYTES = (
    "--load-format bitsandbytes with --quantization bitsandbytes, where this release serves the class so; else a copy "
    "in FP8, AWQ or NVFP4, or the publisher's own"
)
_OF_A_SCALE = pattern(r"Parameter (\S+_scale\w*) not found")
_LESS_QUANTISED = (
    "a later release, whose class takes that layer quantised; until then a copy that leaves it in bfloat16, such as "
    "the publisher's"
)
_SIZES = pattern(r"size of tensor a \((\d+)\) must match the size of tensor b \((\d+)\)")


def _tell(facts: LogFacts, death: Death) -> Finding:
    unknown = _UNKNOWN.search(death.message)
    conflict = _CONFLICT.search(f"{death.type_name}: {death.message}")
    quantised = facts.settings.get("quantization") in ("compressed-tensors", "modelopt_fp4", "modelopt_fp8", "quark")
    other_kind = _other_kind(death)
    name = _NAME.search(death.message) or _UNKNOWN_TO.search(death.message)
    name = name or (_PART_OF_MEDIA.search(death.message) if other_kind else None)
    stages = facts.settings.get("pp_size", "1")
    staged = stages not in ("1", "None") or death.rank.startswith("PP")
    unnamed = facts.settings.get("quantization", "None") == "None" and "model_path" in facts.settings
    of_text = any(map(_TEXT_ALONE.match, death.frames))
    why = _why(name[0].strip(chr(39)), quantised, staged, unnamed, of_text) if name and not conflict else ""
    why = _NO_TOWER.format(death.frame.partition(":")[0]) if other_kind else why
    # Of these classes it is known that they tie their embeddings, and of a quantised copy that it may keep the head.
    tied = quantised or any(map(_TIES.match, death.frames)) or facts.settings.get("quantization", "None") != "None"
    packed = _IN_BYTES.search(death.message) if not name and not conflict else None
    outside = facts.remarks.get("left_out") if not name and not conflict else None
    if conflict:
        cause = "How the weights were quantised is not what the arguments say, or nothing that this release reads"
        cause += f": it knows no {unknown[1]}." if unknown else "."
    elif lacked := _LACKED.search(death.message):
        cause = f"The model class of this release asks for weights that the checkpoint has not: {lacked[1]}."
    elif name and "lm_head" in name[0]:
        cause = "The checkpoint has an output layer of its own (lm_head), and the model class of this release has no "
        cause += f"place for one: it takes the input embeddings for it{_AS_COPIES_KEEP_IT if tied else _NO_HEAD}"
    elif name:
        cause = (
            f"The checkpoint has a weight {name[0].strip(chr(39))} that the model class of this release does not know."
        )
        cause += why
    else:
        cause = "A weight of the checkpoint does not fit its place in the model class of this release"
        sizes = _SIZES.search(death.message)
        cause += (
            f": {sizes[1]} against {sizes[2]}, as a packed format gives, or layers of several formats."
            if sizes
            else (f"; it says: {' '.join(death.message.split())[:_QUOTED]}." if death.message.strip() else ".")
        )
    updated = facts.remarks.get("weights_put") if not conflict else None
    if updated is not None and updated.place.line < death.place.line:
        return _of_an_update(facts, death, updated)
    if packed:
        cause += " It comes as one column of bytes, as bitsandbytes packs weights (NF4)."
    if outside is not None and (scale := _OF_A_SCALE.search(outside.text)):
        cause += f" Just before it {scale[1]} had no place either: the copy quantises a layer that this class keeps "
        cause += "whole."
    shared = _shared_expert(facts, death) if not name and not conflict else False
    split = _split(facts, death) if not name and not conflict and not shared else ""
    cause += f" {_OF_A_SHARED_EXPERT}" if shared else f" {split}" if split else ""
    plain = (unnamed or not facts.settings.get("quantization")) and not (name and "lm_head" in name[0])
    of_name: tuple[str, ...] = (_LATER,) if why else (_LATER_CLASS,) if name and plain and not conflict else ()
    path = facts.settings.get("model_path", "").lower()
    method = (
        next((method for word, method in _NAMED_SO if word in path), "") if unnamed and "method was not" in why else ""
    )
    of_a_draft = any(map(_DRAFT_FILE.match, death.frames)) and not conflict
    cause += _OF_THE_DRAFT if of_a_draft else ""
    other_form = _OTHER_FORM[::-1] if _OF_A_METHOD.search(path) else _OTHER_FORM
    for words, look in (
        ("block of drafts", (_NOT_FUSED,)),
        ("of a draft", (_AS_A_DRAFT,)),
        ("the prefix", (_AS_AN_EMBEDDING,)),
        ("another stage's", _STAGES),
        ("stands there twice: the copy", (_SAVED_INSIDE,)),
        ("for another form", (*other_form, *((_APART_IF_ANY,) if any(map(_WITH_SHARED.match, death.frames)) else ()))),
        ("FP8 blocks", _OF_BLOCKS),
        ("of text alone", _AS_A_WHOLE),
        ("packed weight of one", (_OTHER_LOADER,)),
        ("No checkpoint has it", _BY_ANOTHER),
    ):
        of_name = look if words in why else of_name
    if other_kind:
        of_name = (_SERVED_ELSEWHERE,)
    if "other format" in why:
        of_name = (_ONE_FORMAT,)
    if conflict and (of_file := _BESIDE_A_FILE.search(death.message)) is not None:
        of_name = (_OF_ANOTHER_FORM.format(of_file[1]),)
    if "keeps whole" in cause:
        of_name = (_LESS_QUANTISED,)
    finding = Finding(
        rule=RULE.id,
        cause=cause,
        confidence=Confidence.LIKELY if (conflict or name) and _NO_HEAD not in cause else Confidence.POSSIBLE,
        evidence=(*of_failure(facts, death), *of_settings(facts, "quantization", "tp_size")),
        ruled_out_if=(
            ("another release loads the same checkpoint",)
            if other_kind
            else ("the checkpoint of the model's own publisher, not quantised, fails alike",)
        ),
        advice=(
            *((_WITHOUT_DRAFTS,) if of_a_draft else ()),
            *(_unfused(facts) if name and "experts" in name[0] else ()),
            *((_APART,) if shared else ()),
            *((_NOT_READ,) if unknown else ()),
            *_of_its_format(facts, conflict is not None),
            *((f"--quantization {method}, by the name of the checkpoint",) if method else ()),
            *of_name,
            *((_ONE_RANK,) if split else ()),
            *((_OF_BITSANDBYTES,) if packed else ()),
            *((_PACKED,) if not conflict and (not name or _LACKED.search(death.message)) else ()),
            *((_TIED,) if name and "lm_head" in name[0] else ()),
            *((_BY_ITS_NAME,) if _NO_HEAD in cause else ()),
            *(_OF_A_COPY if not other_kind else ()),
        ),
    )
    if death.package != "vllm" and not _NO_PLACE.search(death.message):
        return finding
    return finding.model_copy(update={"advice": tuple(one.replace("of SGLang", "of vLLM") for one in finding.advice)})


def _of_its_format(facts: LogFacts, conflict: bool) -> Iterator[str]:
    """Yield what to do about a form of loading that the start names by hand."""
    form = facts.arguments.get("load_format", "auto")
    if not conflict and form not in ("auto", "None", "safetensors", "dummy", "pt"):
        adapters = " and without adapters (--lora-paths)" if facts.arguments.get("lora_paths", "None") != "None" else ""
        yield (
            f"check the load format: once with --load-format auto in place of {form}{adapters}: a loader of its own "
            "hands layers weights in a form that not every layer of this class takes"
        )


_BESIDE_A_FILE = pattern(r"model config \((?!gguf)([\w-]+)\) does not match .{0,80}\(gguf\)")
_OF_ANOTHER_FORM = (
    "take the field quantization_config ({0}) out of the config.json beside the GGUF file, where it was left over from "
    "the model that the file was made of (or name that config apart, --hf-config-path); a GGUF file says itself how it "
    "is quantised"
)
_OF_A_METHOD = pattern(r"awq|gptq")
_DRAFT_FILE = pattern(r"\w*(?:_mtp|_nextn|_eagle3?|eagle3?_|dflash)\w*\.py:")
_OF_THE_DRAFT = (
    " The target was loaded: it is a layer of the draft (MTP, EAGLE), which quantised copies mostly leave as it was, "
    "while the list of layers that are left out (ignore, exclude_modules) may not name it."
)
_WITHOUT_DRAFTS = (
    "once without --speculative-algorithm: if the target then serves, its draft is what does not fit. Then that "
    "layer's name (mtp.fc, eh_proj) in the copy's list of layers that are not quantised, or a later release"
)
_OF_A_COPY = (
    "leave --quantization out where config.json names the method; else name the one that it was made with",
    "try the publisher's own checkpoint: if it loads, the other one was made for another loader or release",
)
_NO_TOWER = (
    " It is of the part that reads images or sounds, and the class that config.json's architectures led to ({}) is of "
    "text alone: this release does not serve this model, but another one of its family."
)
_SERVED_ELSEWHERE = (
    "a model with images that this release serves (the list of supported models in SGLang's documentation; of GLM "
    "GLM-4.1V and GLM-4.5V, not glm-4v), or transformers or another engine for this one: it needs a class of its own, "
    "which a later release may have. Fetching the weights again, another transformers or --quantization change nothing"
)
_APART = (
    "--disable-shared-experts-fusion: shared experts then have a layer of their own, in the type that they have; or a "
    "later release, which does so where the checkpoint leaves them out of its quantisation"
)
_APART_IF_ANY = (
    "once with --disable-shared-experts-fusion, where the release has it: quantised copies mostly leave the shared "
    "expert as it was, and fused with the routed ones it has no place of that name (SGLang 33759)"
)
_WITH_SHARED = pattern(
    r"(?:qwen3_next|qwen3_5\w*|qwen2_moe|deepseek\w*|glm4_moe\w*|glm_moe\w*|bailing\w*|hunyuan\w*)\.py:"
)
_OF_A_SHARED_EXPERT = (
    "One is twice the other, which is a packed format (FP4) against a whole one, in a layer of experts with which "
    "this start fuses the shared experts: the checkpoint leaves these unquantised, and they are put into the packed "
    "tensor of the routed ones."
)
_EXPERT = pattern(r".* _load_w\d+\w*$")


def _shared_expert(facts: LogFacts, death: Death) -> bool:
    """Say whether a whole expert was to be put into a packed one, while shared experts are fused with routed ones."""
    fused = "experts_fused" in facts.remarks or facts.arguments.get("disable_shared_experts_fusion") == "False"
    sizes = _SIZES.search(death.message)
    packed = sizes is not None and int(sizes[2]) == 2 * int(sizes[1])
    return fused and packed and any(map(_EXPERT.match, death.frames[-2:]))


_FUSED = (
    ("enforce_shared_experts_fusion", "leave --enforce-shared-experts-fusion out"),
    ("VLLM_ROCM_USE_AITER_FUSION_SHARED_EXPERTS", "set VLLM_ROCM_USE_AITER_FUSION_SHARED_EXPERTS=0"),
)


def _unfused(facts: LogFacts) -> Iterator[str]:
    """Yield how to load shared experts apart from routed ones, where the start has them fused."""
    for setting, look in _FUSED:
        if {**facts.arguments, **facts.settings}.get(setting, "0") not in ("0", "False", "false", "None"):
            yield (
                f"{look}: it loads shared experts into the place of a routed one, which takes those that are "
                "quantised alike alone, and not with data parallelism"
            )


def _of_an_update(facts: LogFacts, death: Death, updated: Remark) -> Finding:
    if is_of_another_size(facts, death):
        return of_another_size(facts, death, updated)
    return Finding(
        rule=RULE.id,
        cause="The weights of a running server were replaced, and one no longer fits its place: after the first "
        "load weights are turned into the form of their kernels (FP8 in blocks, Marlin), which takes none of the "
        "checkpoint's form any more. The checkpoint is not at fault.",
        confidence=Confidence.LIKELY,
        evidence=(
            at(facts, updated.place, updated.text, "the update that it was in"),
            *of_failure(facts, death),
            *of_settings(facts, "quantization", "model_path"),
        ),
        ruled_out_if=("a server that is started with those weights dies alike",),
        advice=(
            "restart the server with the new weights on disk",
            "update weights of a model in bfloat16, or of a release that undoes the form first (a later one)",
            "names, shapes, dtype and parallelism that a trainer sends have to be the server's",
        ),
    )


_ONE_RANK = (
    "once with --tp 1 (tp_size 1): if it then loads, this release's code of that part does not split it; until a later "
    "one --dp for the other GPUs, or text alone where it is the part of images"
)
_NUMBERS = pattern(r"\d+(?: ?\* ?\d+)?")


_NARROWED = pattern(r"start \((\d+)\) \+ length \((\d+)\) exceeds dimension size \((\d+)\)")


def _split(facts: LogFacts, death: Death) -> str:
    """Say that two sizes differ by as much as there are ranks, which share the weights; "" if they do not."""
    narrowed = _NARROWED.search(death.message)
    if narrowed and int(narrowed[2]) == int(narrowed[3]) and int(narrowed[1]) >= int(narrowed[3]):
        return (
            f"The weight that a rank is to take its share of has {narrowed[3]} rows, which is one share alone: it "
            "was cut before, or counts packed rows for whole ones. The first rank, whose share begins at 0, does not "
            "notice."
        )
    ranks = facts.settings.get("tp_size", "")
    told = death.rank.startswith("TP") or any("[RANK " in alarm.text for alarm in facts.alarms)
    sizes = [math.prod(map(int, re.split(r" ?\* ?", found))) for found in _NUMBERS.findall(death.message)]
    times = {int(ranks)} if ranks.isdecimal() else {2, 4, 8} if told else {1}
    pairs = ((larger, smaller) for larger in sizes for smaller in sizes if smaller > _A_SIZE)
    found = next((larger // smaller for larger, smaller in pairs if larger in {smaller * by for by in times - {1}}), 0)
    if not found:
        return ""
    return (
        f"One size is {found} times the other, as if each of {found} ranks took a weight whole, or it was split twice."
    )


_A_SIZE = 64  # a dimension of a layer, and no count


_OF_A_LAYER = pattern(
    r"layers\.[0-3]\.[\w.]*(?:experts|_proj|mlp|attn|attention)[\w.]*\.weight\w* not found in params_dict"
)


_EACH_EXPERT = (
    "a later release of SGLang, whose class of this model knows such names (a quantised copy has one weight for each "
    "expert where the publisher's packs them)"
)
_NOT_QUANTISED = "until then the publisher's own checkpoint, not quantised"
_OF_THE_HEAD = pattern(r"lm_head\.weight_(?:scale|packed|global_scale)\w* not found in params_dict")


def _find(facts: LogFacts) -> Iterator[Finding]:
    yield from _OF_DEATH.find(facts)
    yield from _not_loaded(facts)
    if (kept := before_a_torn_end(facts, RULE.id)) is not None:
        yield kept
        return
    # Layers of drafts, which come last, and unused buffers are left out by rights.
    first = facts.remarks.get("first_left_out")
    last = facts.remarks.get("left_out")
    if last is not None and (_OF_THE_HEAD.search(last.text) or (first is not None and _OF_THE_HEAD.search(first.text))):
        yield Finding(
            rule=RULE.id,
            cause="The scale of a quantised output layer (lm_head) was left out, for this release keeps that layer "
            "whole: the server starts, and its answers repeat themselves or are nonsense.",
            confidence=Confidence.LIKELY,
            evidence=(*remarked(facts, "left_out", "the last that was left out"), *of_settings(facts, "quantization")),
            ruled_out_if=("answers at temperature 0 are those of transformers with the same checkpoint",),
            advice=(
                "a later release of SGLang, which takes that layer quantised; until then a copy whose lm_head is in "
                "bfloat16, such as the publisher's",
            ),
            upstream=("SGLang 34895",),
        )
    elif first is not None and _OF_A_LAYER.search(first.text) and _of_the_draft(facts, first):
        yield Finding(
            rule=RULE.id,
            cause="Weights of the draft were left out as it was loaded, for its class does not know their names, such "
            "as those of layers that it packs and the checkpoint left unquantised: its drafts are noise, and next to "
            "none is accepted. The target has its weights, so that answers are right.",
            confidence=Confidence.LIKELY,
            evidence=(
                at(facts, first.place, first.text, "the first of them, below the target's weights"),
                *remarked(facts, "after_weights", "the draft's class"),
            ),
            ruled_out_if=("drafts are accepted (accept len well above 1)",),
            advice=(
                "without --speculative-algorithm: such drafts only cost; or a later release, whose class of the draft "
                "takes its layers as the checkpoint has them (SGLang 35797)",
                "a checkpoint whose draft (mtp.*) is quantised as the rest, or the publisher's own in bfloat16 or FP8",
            ),
        )
    elif first is not None and _OF_A_LAYER.search(first.text):
        yield Finding(
            rule=RULE.id,
            cause="Weights of the checkpoint were left out as it was loaded, for the model class of this release does "
            "not know their names: the server starts, and its answers are nonsense.",
            confidence=Confidence.LIKELY,
            evidence=(
                at(facts, first.place, first.text, "the first of them"),
                *remarked(facts, "left_out", "the last of them"),
                *of_settings(facts, "quantization", "load_format"),
            ),
            ruled_out_if=("answers at temperature 0 are those of transformers with the same checkpoint",),
            advice=(_EACH_EXPERT, _NOT_QUANTISED),
        )


_DRAFTS = pattern(r"\btype=\w*(?:MTP|NextN|Eagle|Draft)")


def _of_the_draft(facts: LogFacts, first: Remark) -> bool:
    """Say whether the first weight that was left out is of the draft, which is loaded behind the target."""
    target, draft = facts.remarks.get("first_after_weights"), facts.remarks.get("after_weights")
    return (
        target is not None
        and draft is not None
        and _DRAFTS.search(draft.text) is not None
        and target.place.line < first.place.line < draft.place.line
    )


_OF_EXPERTS = pattern(r"not initialized from (?:the )?checkpoints?:.*?('[\w.]*experts\.\w*(?:w13|w2)_weight\w*')")


def _not_loaded(facts: LogFacts) -> Iterator[Finding]:
    """Yield that experts got no weights, which a start survives; other layers may share or tie theirs by rights."""
    lacked = facts.remarks.get("not_loaded")
    if lacked is not None and (expert := _OF_EXPERTS.search(lacked.text)):
        yield Finding(
            rule=RULE.id,
            cause=f"Experts got no weights as the checkpoint was loaded, such as {expert[1]}: the model class of this "
            "release does not know the checkpoint's names for them. The server starts, and its answers are nonsense.",
            confidence=Confidence.LIKELY,
            evidence=(
                *remarked(facts, "not_loaded", "what got no weights"),
                *of_settings(facts, "quantization", "load_format"),
            ),
            ruled_out_if=("answers at temperature 0 are those of transformers with the same checkpoint",),
            advice=(_EACH_EXPERT, _NOT_QUANTISED),
            upstream=("SGLang 22929",),
        )


_OF_DEATH = of_death("weight-names", "the checkpoint does not fit the model class", _explains, _tell)
RULE = replace(_OF_DEATH, find=_find)
