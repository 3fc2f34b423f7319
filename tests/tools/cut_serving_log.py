"""Cuts a serving log down to what a sample in tests/data/logs keeps.

Usage: python tests/tools/cut_serving_log.py LOG OUT.log FROM=TO... Kept: everything from the first batch line on, and
before it the lines about settings, pools and patches. Of ServerArgs the settings stay that `logs` reads; FROM=TO
replaces paths of the machine.
"""

import re
import sys
from pathlib import Path

KEPT = ("server_args=", "Use sliding window memory pool", "max_total_num_tokens=", "FAULT INJECTED", "Tree cache")
SETTINGS = (
    *("attention_backend", "prefill_attention_backend", "decode_attention_backend", "page_size", "tp_size", "dp_size"),
    *("swa_full_tokens_ratio", "mem_fraction_static", "chunked_prefill_size", "max_running_requests"),
    *("max_total_tokens", "speculative_algorithm", "speculative_num_steps", "disable_cuda_graph"),
    *("disable_overlap_schedule", "disable_radix_cache", "kv_cache_dtype"),
)
_SETTING = re.compile(rf"\b(?:{'|'.join(SETTINGS)})=(?:'[^']*'|[\w.+-]+)")


def cut(text: str) -> str:
    lines = text.splitlines(keepends=True)
    begin = next(at for at, line in enumerate(lines) if "Prefill batch" in line or "hit an exception" in line)
    head = [_shortened(line) for line in lines[:begin] if any(mark in line for mark in KEPT)]
    return "".join([*head, *lines[begin:]])


def _shortened(line: str) -> str:
    before, mark, arguments = line.partition("server_args=ServerArgs(")
    return f"{before}{mark}{', '.join(_SETTING.findall(arguments))})\n" if mark else line


def main(source: str, target: str, *replacements: str) -> None:
    text = cut(Path(source).read_text(errors="replace"))
    for replacement in replacements:
        old, _, new = replacement.partition("=")
        text = text.replace(old, new)
    Path(target).write_text(text)


if __name__ == "__main__":
    main(*sys.argv[1:])
