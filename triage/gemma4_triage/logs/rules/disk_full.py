"""A disk ran full, or a quota of it: of the cache that weights are downloaded to, of kernels, logs or dumps."""

from __future__ import annotations

import re

from gemma4_triage.finding import Confidence, Finding
from gemma4_triage.logs.facts import Death, LogFacts
from gemma4_triage.logs.late_pattern import pattern
from gemma4_triage.logs.rule import of_death, of_failure, of_settings, says
from gemma4_triage.logs.rules import shared_memory

_WORDS = pattern(
    r"(?i)No space left on device|\bos error 28\b|\bErrno 28\b|\bENOSPC\b|Disk quota exceeded|\bErrno 122\b|"
    r"not enough (?:free )?(?:disk space|space (?:to (?:download|save|write|store)|on (?:the )?(?:device|disk|volume|"
    r"drive)|"
    r"left))|disk is full"
)
_DOWNLOAD = pattern(
    r"(?:file_download|_snapshot_download|weight_utils|hf_\w+|loader)\.py:|.* (?:\w*download\w*|xet_get|http_get)$"
)
_COMPILES = pattern(r"(?:jit\w*|cpp_ext\w*|cpp_extension|compiler|cache|codecache|cuda_utils)\.py:")


_STORES = pattern(r"(?i)failed to (?:save|write|store) (?:tensor|page)|hicache")


def _of_the_store(facts: LogFacts, death: Death) -> Finding:
    return Finding(
        rule=RULE.id,
        cause="The folder of the hierarchical cache's file storage filled its volume: that backend writes pages and "
        "removes none, unless it was given a bound. In /dev/shm it is the host's memory that it fills.",
        confidence=Confidence.LIKELY,
        evidence=(*of_failure(facts, death), *of_settings(facts, "hicache_storage_backend")),
        ruled_out_if=("du -s of that folder is a small part of the volume",),
        advice=(
            "empty that folder (SGLANG_HICACHE_FILE_BACKEND_STORAGE_DIR), on a disk of its own and not in /dev/shm; a "
            "later release, with a bound (SGLANG_HICACHE_FILE_BACKEND_MAX_SIZE); until then a job that removes old "
            "files, or no --hicache-storage-backend (SGLang 26670)",
            "df -h and df -i, in the container too",
        ),
    )


def _explains(death: Death) -> bool:
    return says(_WORDS)(death) and not shared_memory.RULE.explains(death)


def _tell(facts: LogFacts, death: Death) -> Finding:
    frames = [frame for failure in facts.deaths if _explains(failure) for frame in failure.frames[-6:]]
    downloads = any(map(_DOWNLOAD.match, frames)) or bool(
        re.search(r"(?i)download|hugging|safetensors|cas service|hub", death.message)
    )
    where = (
        " The volume of the weights' cache filled up while they were downloaded."
        if downloads
        else " It was writing compiled kernels."
        if any(map(_COMPILES.match, frames))
        else ""
    )
    if _STORES.search(death.message) and facts.settings.get("hicache_storage_backend") == "file":
        return _of_the_store(facts, death)
    return Finding(
        rule=RULE.id,
        cause=f"A disk has no space left.{where}",
        confidence=Confidence.LIKELY,
        evidence=(*of_failure(facts, death), *of_settings(facts, "model_path", "download_dir")),
        ruled_out_if=("df -h and df -i show room on every volume that the server writes to",),
        advice=(
            "df -h and df -i, in the container too; free or enlarge that volume, or mount a larger one",
            "weights: HF_HOME or --download-dir on a volume with room for the whole checkpoint; delete "
            "*.incomplete files there, then start again"
            if downloads
            else "caches move: HF_HOME, TRITON_CACHE_DIR, TORCHINDUCTOR_CACHE_DIR, FLASHINFER_WORKSPACE_BASE, TMPDIR",
        ),
    )


RULE = of_death("disk-full", "a disk has no space left", _explains, _tell, alarms=("no-memory", "panic"))
