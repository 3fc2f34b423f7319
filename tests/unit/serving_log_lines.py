"""Lines as SGLang 0.5.13 writes them, for logs that no CPU can make: many ranks, long runs, CUDA's own messages."""

from collections.abc import Iterator


def stamp(second: int, rank: str = "") -> str:
    """Return a stamp such as [2026-01-01 00:00:07 TP0], for 7 seconds after midnight of the first day."""
    day, rest = divmod(second, 86400)
    clock = f"{rest // 3600:02d}:{rest // 60 % 60:02d}:{rest % 60:02d}"
    return f"[2026-01-{1 + day:02d} {clock}{' ' + rank if rank else ''}]"


def prefill(second: int, new: int = 1000, cached: int = 0, full: float = 0.5, swa: float = 0.5, **other) -> str:
    """other: seqs, queued, rank."""
    return (
        f"{stamp(second, other.get('rank', ''))} Prefill batch, #new-seq: {other.get('seqs', 1)}, #new-token: {new}, "
        f"#cached-token: {cached}, full token usage: {full:.2f}, swa token usage: {swa:.2f}, #running-req: 4, "
        f"#queue-req: {other.get('queued', 0)}, #pending-token: 0, cuda graph: False, "
        "input throughput (token/s): 1000.00\n"
    )


def decode(second: int, accept: float = 2.5, rate: float = 900.0, full: float = 0.5, swa: float = 0.5, **other) -> str:
    """other: running, queued, rank, graph."""
    return (
        f"{stamp(second, other.get('rank', ''))} Decode batch, #running-req: {other.get('running', 8)}, "
        f"#full token: 1000, full token usage: {full:.2f}, #swa token: 500, swa token usage: {swa:.2f}, "
        f"accept len: {accept:.2f}, accept rate: 0.50, cuda graph: {other.get('graph', True)}, "
        f"gen throughput (token/s): {rate:.2f}, "
        f"#queue-req: {other.get('queued', 0)}\n"
    )


def retraction(second: int, requests: int = 1, rank: str = "") -> str:
    return (
        f"{stamp(second, rank)} KV cache pool is full. Retract requests. #retracted_reqs: {requests}, "
        "#new_tokens_gained: 1000, #new_token_ratio: 0.7000 -> 0.8000\n"
    )


def death(second: int, last_line: str, rank: str = "", frame: str = "scheduler.py") -> str:
    """Return a scheduler's traceback."""
    return (
        f"{stamp(second, rank)} Scheduler hit an exception: Traceback (most recent call last):\n"
        f'  File "/srv/sglang/{frame}", line 12, in step\n'
        f"    call()\n{last_line}\n\n"
    )


def steady(lines: int, start: int = 0, **values) -> Iterator[str]:
    """Decode lines, one a second. values: of `decode`."""
    return (decode(start + second, **values) for second in range(lines))
