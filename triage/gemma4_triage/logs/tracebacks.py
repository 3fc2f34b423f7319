"""Finds what a server's processes died of, line by line.

A log is full of tracebacks that somebody caught and wrote down. Those that end a process are introduced by SGLang's
workers ("Scheduler hit an exception:"), by multiprocessing ("Process x:") or by threading ("Exception in thread").
Of a chain each link is reported, the cause first.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Sequence
from dataclasses import replace

from gemma4_triage.logs.facts import Death, Place

TRACEBACK = b"Traceback (most recent call last):"
TORN = "the log ends inside its traceback"
FRAME = b'File "'
_NATIVE = b'File "<unknown>"'
CHAIN = (b"During handling of the above exception", b"The above exception was the direct cause")
IGNORED = b"Exception ignored "
_OF_A_THREAD = b"Exception in thread"
INTRODUCTIONS = (b"Process ", _OF_A_THREAD, IGNORED)
# Python says so where it has nobody to raise an exception to (__del__, a callback); this one has ended its thread.
_ENDS_A_THREAD = b"Exception ignored in thread started by"
_INTRODUCED = b"hit an exception: "
# The frame at which a program, a process or a thread begins: what came as far as that was caught by nobody.
_OUTERMOST = re.compile(
    rb'\s*File "(?:<frozen runpy>|<string>|<stdin>|[^"]*/bin/[^"/]+|[^"]*/(?:runpy|launch_server|__main__)\.py)", '
    rb"line \d+, in (?:<module>|_run_module_as_main|_run_code)"
    rb'|\s*File "[^"]*(?:multiprocessing/process|threading)\.py", line \d+, in _bootstrap'
)
# The loops that SGLang's processes run in, for tracebacks whose beginning is missing.
_LOOP = re.compile(
    rb", in (?:run_scheduler_process|run_event_loop|dispatch_event_loop|event_loop_\w+|run_detokenizer_process"
    rb"|run_data_parallel_controller_process|run_tp_worker|forward_thread_func_?)\s*$"
)
# Whoever quotes a last line may leave a blank before it; frames have two, and what they quote four.
_SHIFTED = re.compile(rb" (?:[\w<>]+\.)*\w*(?:Error|Exception)(?:: |\s*$)")
# Torch's words for what the device met, where whoever shortened a traceback left out the name of the exception.
_OF_THE_DEVICE = re.compile(rb"(?:CUDA|HIP) error: \S")
# What a kernel of torch's own prints as it stops, in the middle of whatever else is written.
_ASSERTED = re.compile(rb"\S+\.cuh?:\d+: .{0,600}\bAssertion .{1,600} failed")
_LAST_LINE = re.compile(r"(?:[\w<>]+\.)*([A-Za-z_]\w*)(?:: (.*)|:)?")
# As Python shows an exception itself, which some programs print in the place of a last line: ValueError("...").
_SHOWN = re.compile(rb"((?:\w+\.)*[A-Z]\w*(?:Error|Exception))\((['\"])(.+)\2,?\)\s*")
_WORDS = re.compile(
    r"[A-Z]+|(?!\w*(?:Error|Exception)$|gaierror$)[a-z]\w*"
)  # "INFO: …" and "python: …" are no exceptions
# As it stands in a log, or shortened by whom it was quoted: "sglang/srt/x", ".../srt/x", ".../managers/x".
_OF_SGLANG = re.compile(
    rb'\s*File "(?:[^"]*/sglang/(?:srt/)?|(?:python/)?sglang/(?:srt/)?|[^"]*/srt/|srt/|'
    rb"(?:(?:\.\.\.?|\xe2\x80\xa6)/)?(?=(?:managers|mem_cache|model_executor|model_loader|speculative|disaggregation)/)|"
    rb"(?:\.\.\.?|\xe2\x80\xa6)/(?=(?:models|layers|entrypoints|constrained|lora|sampling|function_call|multimodal|"
    rb"configs|eplb)/))"
    rb'([^"]+)"'
)
# A bare name, as people shorten a path to: those that one folder of SGLang alone has, and no package that it calls.
_BARE = re.compile(rb'\s*File "([A-Za-z_]\w*\.py)"')
_FOLDERS = {
    "managers": "scheduler schedule_batch schedule_policy tp_worker tokenizer_manager detokenizer_manager "
    "data_parallel_controller cache_controller scheduler_output_processor_mixin mm_utils io_struct "
    "tp_worker_overlap_thread multi_tokenizer_mixin template_manager",
    "mem_cache": "memory_pool memory_pool_host radix_cache hiradix_cache swa_radix_cache mamba_radix_cache "
    "unified_radix_cache hi_mamba_radix_cache swa_memory_pool chunk_cache allocator",
    "model_executor": "model_runner cuda_graph_runner forward_batch_info piecewise_cuda_graph_runner",
    "model_loader": "weight_utils",
    "speculative": "eagle_worker eagle_worker_v2 eagle_info eagle_info_v2 eagle_utils ngram_worker ngram_info "
    "spec_info multi_layer_eagle_worker standalone_worker eagle_draft_cuda_graph_runner spec_utils dflash_worker",
    "layers": "logits_processor sampler radix_attention vocab_parallel_embedding dp_attention communicator",
    "layers/attention": "flashattention_backend flashinfer_backend flashinfer_mla_backend triton_backend "
    "trtllm_mha_backend trtllm_mla_backend hybrid_attn_backend hybrid_linear_attn_backend aiter_backend nsa_backend "
    "torch_native_backend cutlass_mla_backend flashmla_backend dual_chunk_flashattention_backend",
    "layers/quantization": "fp8 fp8_utils fp8_kernel modelopt_quant compressed_tensors_moe mxfp4 awq gptq w8a8_int8 "
    "marlin_utils",
    "layers/moe": "fused_moe token_dispatcher",
    "lora": "lora_manager mem_pool lora_registry",
    "constrained": "xgrammar_backend outlines_backend llguidance_backend base_grammar_backend grammar_manager",
    "entrypoints": "http_server engine",
    "entrypoints/openai": "serving_chat serving_completions serving_base serving_responses",
    "disaggregation": "prefill decode",
    "models": "gemma2 gemma3_causal gemma3_mm gemma3n_causal gemma4_causal gemma4_mm gpt_oss qwen2 qwen3 qwen3_moe "
    "qwen3_next qwen3_5 qwen3_vl qwen2_5_vl deepseek_v2 deepseek_v4 deepseek_nextn llama4 mllama4",
}
FOLDER_OF = {f"{name}.py": folder for folder, names in _FOLDERS.items() for name in names.split()}
"""Which folder of SGLang has a file of this name, of those that one alone has."""
_OF_PACKAGE = re.compile(
    rb'\s*File "(?:[^"]*/(?:site|dist)-packages/|(?:\.\.\.|[^"]*/src)/'
    rb"(?=(?:transformers|lmdeploy|mlx_lm|flag_gems)/))(\w+)"
)
# Whoever shortens a traceback by hand may leave the numbers out.
_FRAME = re.compile(r'\s*File "([^"]*)"(?:, line (\d+|[?.…]+))?, in (.*)')
_NAKED = re.compile(rb'\s*File "[^"]*", line \d+\s*')
# Shortened further, to the function alone: "  in get_cpu_copy"; or told beside it, as "# the last frame is run_batch".
_FUNCTION = re.compile(
    rb"\s+(?:(?:\[?\.\.\.\]?|\xe2\x80\xa6) )?in ([A-Za-z_<][\w.<>]*)\s*$|"
    rb"\s*# the (?:last|innermost) frame is ([A-Za-z_<][\w.<>]*)"
)
# What somebody wrote in the place of the last line: "# ends in a pydantic ValidationError: …".
_TOLD_END = re.compile(
    rb"\s*#+ (?:it )?(?:ends|ended|dies|died) (?:in|of|with) (?:an? )?(?:\w+ )?((?:\w+\.)*\w+(?:Error|Exception): .*)"
)
# Of the standard library's modules, whose exceptions begin with a small letter.
_SMALL = re.compile(rb"(?:struct|re|zlib|socket|select|audioop)\.(?:error|timeout|gaierror|herror)\b")
_ELISIONS = frozenset({b"...", "…".encode(), b"[...]", b"(...)"})
# An exception whose message begins below it lists what was tried, each with an exception of its own: "- OSError: ...".
_ATTEMPT = re.compile(r"\s*- \w+(?:Error|Exception): \S")
# What the kernels that SGLang compiles itself refuse: the next line says of which tensor, in which dimension.
_GOES_ON = re.compile(
    r"Tensor match failed\b(?!.*Root cause)|NCCL error in: |PTXAS error: |Ninja output:$|ninja exited with status|"
    r"Triton PTX codegen error|Error\(s\) in loading state_dict|validation errors? for \w+$"
)
_OF_STATES = re.compile(r"size mismatch for |(?:Missing|Unexpected) key")
_OF_NCCL = re.compile(r"nccl\w+: |Last error:")
_OF_A_COMPILER = re.compile(r"`?ptxas\b|FAILED: |ninja: |.{0,300}(?:fatal )?error: |\S*sh: .{0,200}not found")
# Triton's compiler quotes its source, indented, before it says what is wrong with it.
_QUOTES = re.compile(r"at \d+:\d+:")
_GROUP = re.compile(rb" {2,}(?:\| ?|\+[-+].*)")
_PART = re.compile(rb" {4,}[|+] ")
OF_GROUPS = frozenset({"ExceptionGroup", "BaseExceptionGroup"})
"""What only counts the exceptions within it, which follow."""
_STOPPED = frozenset({"KeyboardInterrupt", "CancelledError", "GeneratorExit"})
_LONGEST_TRACEBACK = 2000  # lines
_LONGEST_MESSAGE = 2000  # characters
_FRAMES = 12
_LONGEST_STATEMENT = 6  # lines
_MARKERS = re.compile(rb"[\s^~|]*")
_MOST_DETAILS = 40  # lines of a message that begins below its exception
_MOST_FOREIGN = 5  # lines of others, without a stamp, that may stand between two of a traceback


# A frame as somebody tells it: "in sglang/srt/utils.py parse", or beside it: "# ... down to deep_gemm/__init__.py".
_TOLD_FRAME = re.compile(
    rb"(?:\s+|\s*#+ (?:(?:\.\.\.|\xe2\x80\xa6) ?)?(?:[\w, ]{0,40}\b)?)(?:in|at|down to|inside|within) "
    rb"((?:[\w.-]+/)+\w+\.py)(?:(?::\d+)?[ :]+([A-Za-z_]\w*)(?:\(\))?)?\s*"
)


# Shortened by hand: "  ... managers/scheduler.py, line 2163, in run_batch", at times without number and ending.
_ELIDED_FRAME = re.compile(
    rb"\s+(?:\.\.\.|\xe2\x80\xa6) ?(?:\.\.\./)?((?:[\w.-]+/)*\w+\.py|(?:[\w.-]+/)+\w+),? "
    rb"(line \d+,? )?in ([A-Za-z_<][\w.<>]*)\s*"
)
# "  in LoRAManager.fetch_new_loras": of a class whose file has its name.
_TOLD_METHOD = re.compile(rb"\s+in ([A-Z]\w+)\.(\w+)\s*")
# A package as the place of the last frame: "# last frame is in deep_gemm".
_TOLD_PACKAGE = re.compile(
    rb"\s*#+ (?:the )?(?:last|innermost) frames? (?:is|are|stands?|lies?) (?:in|inside|within) (?:the package )?"
    rb"((?:deep_(?:gemm|ep)|flash(?:infer|_attn|_mla)|sgl_kernel|sglang_kernel|tvm_ffi|triton|transformers|vllm|xgrammar|"
    rb"aiter|mooncake|nixl|lmcache|torchao|torchvision|diffusers|kernels))\W*"
)
_FILE_OF = {name.removesuffix(".py").replace("_", ""): name for name in FOLDER_OF}


def told_frame(line: bytes) -> bytes | None:
    """Return the frame that somebody tells in a line of his own, as Python writes one; None if it tells none."""
    if (method := _TOLD_METHOD.fullmatch(line)) is not None:
        file = _FILE_OF.get(method[1].decode().lower())
        return None if file is None else b'  File "' + file.encode() + b'", in ' + method[2]
    if (elided := _ELIDED_FRAME.fullmatch(line[: _LONGEST_STATEMENT * 40])) is not None:
        return _written_out(*elided.groups())
    if (package := _TOLD_PACKAGE.fullmatch(line[: _LONGEST_STATEMENT * 40])) is not None:
        return b'  File "/site-packages/' + package[1] + b'/__init__.py", in ?'
    found = _TOLD_FRAME.fullmatch(line[: _LONGEST_STATEMENT * 40])
    if found is None:
        return None
    name = found[2] or b"<module>" if found[1].endswith(b"__init__.py") else found[2] or b"?"
    for path in (found[1], b".../" + found[1], b"/site-packages/" + found[1]):
        frame = b'  File "' + path + b'", in ' + name
        if _OF_SGLANG.match(frame) or _OF_PACKAGE.match(frame):
            return frame
    return None


def _written_out(path: bytes, number: bytes | None, function: bytes) -> bytes:
    """Return a frame as Python writes it, of one whose path, or word "File", was left out."""
    path = path.removesuffix(b".py") + b".py"
    at = b", " + number.rstrip(b", ") if number else b""
    return b'  File "' + (b".../" if b"/" in path else b"") + path + b'"' + at + b", in " + function


def tells_its_end(line: bytes) -> bool:
    """Say whether somebody wrote in a line what the traceback above it ended in."""
    return _TOLD_END.match(line) is not None


def as_raised(line: bytes) -> bytes:
    """Return an exception that is shown as Python's repr as the last line of its traceback; any other line as it is."""
    if told := _TOLD_END.match(line):
        return told[1]
    found = _SHOWN.fullmatch(line) if line[-1:] in b") \t" else None
    return line if found is None else found[1] + b": " + found[3]


class TracebackReader:
    """Holds at most one traceback open.

    Attributes:
        inside: whether the next lines belong to it.
        survived: the frames of the last one that ended no process, until the next begins.
        caught: that exception itself; None where the next has begun.
        cancelled: the innermost frame and line of the last one that a task was cancelled in; "" if none was.
    """

    def __init__(self) -> None:
        self.inside = False
        self._chained = self._linked = False
        self._introduced = False
        self._fatal = False
        self._ignored = self._thread = False
        self._rank = ""
        self._begin = self._chain = Place(0)
        self._frames: deque[bytes] = deque(maxlen=_FRAMES)
        self._statement: list[bytes] = []
        self._leak = self._asserted = b""
        self._left = self._foreign = 0
        self._first_frame = self._flush = False
        self._group = False
        self._whole_group: Place | None = None
        self._details = 0
        self._last: Death | None = None
        self.survived: tuple[str, ...] = ()
        self.caught: Death | None = None
        self.cancelled = ""

    @property
    def watching(self) -> bool:
        """Say whether the next line has to be shown to `line`, whatever it holds."""
        return self.inside or self._chained or self._introduced or self._details > 0

    @property
    def is_bare(self) -> bool:
        """Say whether one is open of which whoever shortened it has left no frame."""
        return self.inside and not self._frames

    def begin(self, line: bytes, rank: str, place: Place) -> bool:
        """Read a line with TRACEBACK in it. Returns whether the traceback is known to be one that a process dies of."""
        led_to = self._introduced or (self._chained and (self._linked or not self._ignored))
        if _INTRODUCED in line or not led_to:
            self._ignored = self._thread = False
        fatal = (_INTRODUCED in line or led_to) and not self._ignored
        self._group = b"Exception Group " + TRACEBACK in line or (self._group and self._chained)
        if self._whole_group is not None and _PART.match(line):
            self._chain = self._whole_group
        elif not self._linked or _INTRODUCED in line:
            self._chain = place
            self._whole_group = place if self._group else None
        self._introduced = self._chained = self._linked = False
        if _INTRODUCED in line or not fatal or not self._rank:
            self._rank = rank
        self._open(place, fatal)
        self._first_frame = True
        return fatal

    def begin_inside(self, line: bytes, rank: str, place: Place) -> None:
        """Read a line with FRAME in it where no traceback is open: the beginning is missing."""
        if _NAKED.fullmatch(line) and _OF_SGLANG.match(line):
            line = line.rstrip() + b", in ?"
        # Frames of native code, which torch prints of a signal, are no traceback.
        if _NATIVE in line or _FRAME.match(line[:_LONGEST_MESSAGE].decode(errors="replace")) is None:
            return
        self._rank, self._chain = rank, place
        self._ignored = self._thread = False
        self._open(place, fatal=False)
        self.line(line)

    def _open(self, place: Place, fatal: bool) -> None:
        self.inside = True
        self._details = 0
        self.survived, self.caught = (), None
        self._fatal = fatal
        self._left, self._foreign = _LONGEST_TRACEBACK, _MOST_FOREIGN
        self._begin = place
        self._frames.clear()
        self._statement, self._leak, self._asserted = [], b"", b""
        self._first_frame = self._flush = False

    def torn(self, at_end: bool) -> Death | None:
        """Return what the log ends inside of: a process died, of what is cut off; None if no traceback is open.

        Args:
            at_end: whether the last line of the log is the last one that was shown here; a traceback that somebody may
                have caught is open only then.
        """
        if not self.inside or self._ignored or not (self._fatal or (at_end and self._foreign == _MOST_FOREIGN)):
            return None
        statement = b" ".join(self._statement).decode(errors="replace")[:_LONGEST_MESSAGE]
        said = self._asserted.decode(errors="replace") or TORN
        return death_of(self._begin, self._rank, "", said, tuple(self._frames), self._chain, statement)

    def leaked(self, line: bytes) -> Death | None:
        """Return the end of a traceback that is shortened to the words of a leak, with the pool's equation below."""
        if not self._leak or not self._fatal:
            return None
        self.inside = False
        message = f"{self._leak.decode(errors='replace')} {line.decode(errors='replace').strip()}"
        self._last = death_of(self._begin, self._rank, "", message[:_LONGEST_MESSAGE], (), self._chain)
        return self._last

    def introduce(self, line: bytes) -> None:
        """Read a line with one of INTRODUCTIONS in it: if it begins with one, a traceback that follows is a death."""
        self._introduced = line.startswith(INTRODUCTIONS)
        self._ignored = line.startswith(IGNORED) and not line.startswith(_ENDS_A_THREAD)
        self._thread = line.startswith(_OF_A_THREAD)

    def line(self, line: bytes) -> tuple[bool, Death | None]:
        """(whether the line belongs to a traceback of a death or leads to one, what it ends in).

        Lines with a stamp are other processes': they are not shown here, and end nothing. The lines of a traceback
        that somebody may have caught belong to nothing before it is known to have ended a process.
        """
        if self._group:
            line = _GROUP.sub(b"", line, count=1)
        if self.inside:
            death = self._body(line)
            return self._fatal or self._ignored, death
        self._linked = line.startswith(CHAIN) or (self._linked and not line)
        if self._chained and line and not self._linked:
            self._chained = False
            self._rank = ""
        self._introduced = False
        return self._chained, None

    def detailed(self, line: bytes) -> Death | None:
        """Return the last death with a line that says more of it, where its message begins below it; else None."""
        if not self._details or self.inside or self._last is None:
            return None
        self._details = 0 if line.startswith(CHAIN) else self._details - 1
        text = line.decode(errors="replace").strip()
        known = self._last.message
        if _QUOTES.fullmatch(known):
            if not text or line[:1].isspace():
                return None
            self._details = 0
        elif not text or not self._details or (known and not self._belongs(text)):
            return None
        self._last = replace(self._last, message=f"{known} {text}".strip()[:_LONGEST_MESSAGE])
        return self._last

    def _belongs(self, text: str) -> bool:
        assert self._last is not None
        known = self._last.message
        goes_on = _GOES_ON.search(known) is not None and text.startswith("- ")
        if "in loading state_dict" in known:
            return _OF_STATES.match(text) is not None
        if "PTXAS error" in known or "codegen error" in known or "inja " in known:
            return _OF_A_COMPILER.match(text) is not None
        if "validation error" in known:
            return text.startswith("Value error, ")
        if "NCCL error in: " in known:
            return _OF_NCCL.match(text) is not None or known.endswith("Last error:")
        return goes_on or _ATTEMPT.match(text) is not None

    def _body(self, line: bytes) -> Death | None:
        self._left -= 1
        if self._left < 0:
            self.inside = self._fatal = False
            return None
        line = told_frame(line) or line
        if _SHIFTED.match(line) and self._frames:
            line = line.lstrip()
        if not line or line[:1].isspace() or self._is_a_frame(line):
            if line.lstrip(b" \t").startswith(FRAME) or _FUNCTION.match(line):
                self._frame(line)
            elif line.strip() in _ELISIONS:
                pass
            elif len(self._statement) < _LONGEST_STATEMENT and not _MARKERS.fullmatch(line[:_LONGEST_MESSAGE]):
                self._statement.append(line[:_LONGEST_MESSAGE].strip())
            return None
        if _OF_THE_DEVICE.match(line):
            line = b"RuntimeError: " + line
        line = as_raised(line)
        match = _LAST_LINE.fullmatch(line[: 4 * _LONGEST_MESSAGE].decode(errors="replace").rstrip("\r"))
        small = _SMALL.match(line)
        if match is None or (_WORDS.fullmatch(match[1]) and small is None):
            if self._flush and len(self._statement) < _LONGEST_STATEMENT:
                self._statement.append(line[:_LONGEST_MESSAGE].strip())
                return None
            if b"Assertion" in line and not self._asserted and _ASSERTED.match(line):
                self._asserted = line[:_LONGEST_MESSAGE].strip()
            if b"leak detected" in line[:_LONGEST_MESSAGE]:
                self._leak = line[:_LONGEST_MESSAGE].strip()
            self._foreign -= 1
            self.inside = self._foreign > 0
            return None
        self.inside = False
        name = small[0].decode() if small else match[1]
        message = (match[2] or "")[:_LONGEST_MESSAGE]
        if match[1] in _STOPPED or (match[1] == "SystemExit" and message in ("", "0")):
            # Somebody stopped the server, or a task of it.
            self._chained = self._fatal
            self.cancelled = _told_of(self._frames, self._statement) if match[1] == "CancelledError" else ""
            return None
        self._chained = self._fatal or self._ignored
        statement = b" ".join(self._statement).decode(errors="replace")[:_LONGEST_MESSAGE]
        if self._ignored:
            return None
        ended = death_of(self._begin, self._rank, name, message, self._frames, self._chain, statement)
        ended = replace(ended, of_thread=True) if self._thread else ended
        if not self._fatal:
            self.survived, self.caught = tuple(map(_frame_text, self._frames)), ended
            return None
        self._last = ended
        begins_below = not message.strip() or _QUOTES.fullmatch(message) or _GOES_ON.search(message)
        self._details = _MOST_DETAILS if begins_below and b":" in line else 0
        return self._last

    def _is_a_frame(self, line: bytes) -> bool:
        """Return whether a line at the margin is a frame, as of a traceback that lost its indentation on its way."""
        return line.startswith(FRAME) and _FRAME.match(line[:_LONGEST_MESSAGE].decode(errors="replace")) is not None

    def _frame(self, line: bytes) -> None:
        self._flush = line.startswith(FRAME)
        self._frames.append(line)
        self._statement = []
        if not self._ignored and ((self._first_frame and _OUTERMOST.match(line)) or _LOOP.search(line)):
            self._fatal = True
        self._first_frame = False


def death_of(
    place: Place,
    rank: str,
    type_name: str,
    message: str,
    frames: Sequence[bytes],
    chain: Place | None = None,
    statement: str = "",
) -> Death:
    """Return an exception with what its frames say: their texts, whose files they are in, and who called whom."""
    paths: list[str] = []
    for frame in frames:
        # A function without its file is taken to be of the part that called it.
        same = paths[-1] if paths and _FUNCTION.match(frame) else ""
        paths.append(_named(_OF_SGLANG, frame) or _unfolded(frame) or same)
    return Death(
        place,
        rank,
        type_name,
        message,
        tuple(filter(None, map(_frame_text, frames))),
        path=paths[-1] if paths else "",
        package=_named(_OF_PACKAGE, frames[-1]) if frames else "",
        caller=next(filter(None, reversed(paths)), ""),
        chain=(chain or place).line,
        statement=statement,
        host=_host(frames, paths),
    )


def _told_of(frames: Sequence[bytes], statement: Sequence[bytes]) -> str:
    """Return the innermost frame, and its line of source, in words."""
    frame = _frame_text(frames[-1]) if frames else "?"
    return f"{frame}: {b' '.join(statement).decode(errors='replace')[:_LONGEST_MESSAGE]}".rstrip(": ")


_NO_PROGRAM = re.compile(rb'\s*File "(?:[^"]*/(?:site|dist)-packages/|[^"]*/lib/python\d|<|[^"/]*")')
_IS_OFFERED = re.compile(r"entrypoints/|server_args|utils|__init__|plugins/")


def _host(frames: Sequence[bytes], paths: Sequence[str]) -> str:
    """Return the file of a program that called SGLang's inner parts, which SGLang offers nobody; "" if none did."""
    inner = next((at for at, path in enumerate(paths) if path), 0)
    if not inner or _IS_OFFERED.match(paths[inner]) or _NO_PROGRAM.match(frames[inner - 1]):
        return ""
    return _frame_text(frames[inner - 1]).partition(":")[0]


def _named(file: re.Pattern[bytes], frame: bytes) -> str:
    """Return what an expression over a frame's file names; "" if it does not fit."""
    match = file.match(frame[:_LONGEST_MESSAGE])
    return "" if match is None else match[1].decode(errors="replace")


def _unfolded(frame: bytes) -> str:
    """Return the path below SGLang's srt of a file that a frame names without its folder; "" if it is none of those."""
    name = _named(_BARE, frame)
    return f"{FOLDER_OF[name]}/{name}" if name in FOLDER_OF else ""


def _frame_text(line: bytes) -> str:
    if (alone := _FUNCTION.match(line[:_LONGEST_MESSAGE])) is not None:
        return f" {(alone[1] or alone[2]).decode()}"
    match = _FRAME.match(line[:_LONGEST_MESSAGE].decode(errors="replace"))
    return "" if match is None else f"{match[1].rsplit('/', 1)[-1]}:{match[2] or '?'} {match[3].strip()}"
