"""Somebody, or a probe, stopped a server before it was ready."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime

from gemma4_triage.finding import Confidence, Finding
from gemma4_triage.logs.facts import LogFacts, Remark
from gemma4_triage.logs.remarks import number_in
from gemma4_triage.logs.rule import Rule, at, remarked

_LONG_S = 60.0
"""A start that somebody ends sooner was a mistake of theirs."""


def _find(facts: LogFacts) -> Iterator[Finding]:
    stopped, deaths = facts.remarks.get("sigterm"), facts.deaths
    if stopped is None or "ready" in facts.remarks or facts.served or deaths:
        return
    begun = facts.remarks.get("first_before_weights") or facts.remarks.get("before_weights")
    compiles = facts.remarks.get("deep_gemm")
    seconds = _gap(facts.first_time, stopped.place.time)
    again = begun is not None and facts.remarks["before_weights"].place.line > stopped.place.line
    if not (again or compiles or (begun and seconds is not None and seconds >= _LONG_S)):
        return
    lasted = f" after {seconds:.0f} s" if seconds is not None else ""
    what = ", while DeepGEMM compiled its kernels" if compiles else ""
    then = "; it was started again" if again else ""
    stands = unfinished(facts)
    yield Finding(
        rule=RULE.id,
        cause=f"The server was stopped from outside (SIGTERM){lasted}, before it was ready{what}{then}. Nothing in it "
        "failed.",
        confidence=Confidence.LIKELY,
        evidence=(
            at(facts, stopped.place, stopped.text, "the stop"),
            *remarked(facts, "deep_gemm", "what it was doing"),
            *remarked(facts, "before_weights", "the last load of weights"),
        ),
        ruled_out_if=("somebody stopped it by hand",),
        advice=(
            *(
                (
                    "python3 -m sglang.compile_deep_gemm with the server's own arguments compiles beforehand; keep its "
                    "cache on a volume (~/.cache/deep_gemm, SGLANG_DG_CACHE_DIR)",
                )
                if compiles
                else ()
            ),
            "a startup probe that waits longer than a start takes (Kubernetes: startupProbe, initialDelaySeconds; "
            "compose: start_period); kubectl describe pod says which probe failed",
            "keep weights and caches on a volume: what is downloaded or compiled is otherwise lost with the container",
            *(("SGLANG_JIT_DEEPGEMM_PRECOMPILE=0 starts at once, and compiles while it serves",) if compiles else ()),
            *((f"if it stood where it was stopped ({stands[0]}): {stands[2]}",) if stands and not again else ()),
        ),
    )


_STANDS = (
    # The phases of a start, the last first: a remark at its beginning, one at its end, and what to look at.
    (
        "before_graphs",
        "ready",
        "CUDA graphs are captured, or kernels compiled, which takes minutes: nvidia-smi and top show whether it works. "
        "If GPUs and CPUs are idle, it may wait for the lock that a start left which was killed as it compiled: rm -r "
        "~/.cache/flashinfer ~/.cache/torch_extensions, and start again. "
        "Of several ranks or nodes look at each: one that ended or stands elsewhere holds up all; py-spy dump --pid "
        "of each. If all stand in the capture, another release of NCCL (pip show nvidia-nccl-cu12: 2.21.5 deadlocks "
        "there, SGLang 7602), and once with --disable-custom-all-reduce",
    ),
    (
        "pools_end",
        "before_graphs",
        "the pools stand, and the first kernels are tried or ranks meet for shared buffers: py-spy dump --pid of each. "
        "If all stand in rendezvous, once with --enforce-disable-flashinfer-allreduce-fusion (SGLang 29073), then with "
        "--disable-custom-all-reduce. An Engine of one's own script needs if __name__ == '__main__' round its start; "
        "on AMD's GPUs SGLang's ROCm image, with the aiter that it was built with",
    ),
    (
        "before_weights",
        "after_weights",
        "weights are read: iostat and du of the cache show whether they come; a slow or shared volume, a download, or "
        "another rank or node that died meanwhile",
    ),
    (
        "groups_begin",
        "groups_end",
        "ranks and nodes look for each other: start every node, with one --dist-init-addr and its own --node-rank; "
        "NCCL_DEBUG=INFO, NCCL_SOCKET_IFNAME and GLOO_SOCKET_IFNAME; once with NCCL_P2P_DISABLE=1 or "
        "NCCL_IB_DISABLE=1. GB200 and GB300: /dev/nvidia-caps-imex-channels in the container, once with "
        "NCCL_MNNVL_ENABLE=0",
    ),
    (
        "not_imported",
        "before_weights",
        "SGLang leaves its file of a model out where the import fails, which matters for that model alone: its start "
        "then ends with an architecture that is not supported. If it is the one to serve, and transformers.models "
        "lacks its module, a later transformers (pip install -U transformers, as SGLang's pyproject names it); else "
        "the package that the line names",
    ),
)
_COMPILES = (
    "busy",
    "busy_no_more",
    "kernels are compiled, which takes minutes: top shows nvcc, cicc or ptxas if so. If none works, it waits for the "
    "lock that an earlier start left as it was killed: rm -r ~/.cache/flashinfer ~/.cache/torch_extensions",
)


def unfinished(facts: LogFacts) -> tuple[str, str, str] | None:
    """Return where a log of a start ends (its line, its words) and what to look at if it stands; None if it got on."""
    if facts.served or "ready" in facts.remarks or facts.deaths:
        return None
    if facts.starts <= 1 and "answer" in facts.understood:
        # HTTP is there once every scheduler is.
        return None
    phase = next((one for one in _STANDS if one[0] in facts.remarks), None)
    last = max((facts.remarks[one].place.line for one, _, _ in _STANDS if one in facts.remarks), default=0)
    for begins, ends, look in (_COMPILES, *((phase,) if phase else ())):
        begun, ended = facts.remarks.get(begins), facts.remarks.get(ends)
        if begun is not None and begun.place.line >= last and (ended is None or ended.place.line < begun.place.line):
            compiles = _OF_DEEP_GEMM if "DeepGEMM JIT" in begun.text else ""
            return f"line {begun.place.line}", begun.text, f"{_of_little_room(begun)}{compiles}{look}"
    return None


_OF_DEEP_GEMM = (
    "DeepGEMM compiles thousands of shapes before it serves, 10 to 20 minutes and more, and does not stand while its "
    "bar moves: wait, or run python3 -m sglang.compile_deep_gemm with the server's own arguments beforehand, and keep "
    "its cache (~/.cache/deep_gemm) on a volume. Else "
)
_LITTLE_GB = 5.0


def _of_little_room(begun: Remark) -> str:
    """Return what to do where little memory was left as graphs began to be captured; "" elsewhere."""
    left = number_in(begun.text, "avail mem=") if begun.text.find("Capture cuda graph begin") >= 0 else None
    if left is None or left >= _LITTLE_GB:
        return ""
    return (
        f"{left:.1f} GB were left as the capture began: a lower --mem-fraction-static or --cuda-graph-max-bs first. A "
        "capture that runs out of memory on one rank leaves the others standing in the custom all-reduce, and says so "
        "only with --disable-custom-all-reduce (SGLang 11275). Else "
    )


def _gap(begin: str, end: str) -> float | None:
    try:
        return (datetime.fromisoformat(end) - datetime.fromisoformat(begin)).total_seconds()
    except (TypeError, ValueError):
        return None


RULE = Rule("start-stopped", "a server was stopped before it was ready", _find, alarms=frozenset({"health", "killed"}))
