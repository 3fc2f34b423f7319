"""The engine's own logprobs of every token at every position, kept for a comparison: logprobs.npz in an arm's folder.

One array per prompt, named by its number: float64 [positions, vocabulary]; row p is what follows token p. Where only
answers' logprobs were asked for, the prompt's rows but its last are not there, and the first row is that one.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from gemma4_repro.recorders.recorder import Recorder

if TYPE_CHECKING:
    import numpy as np

LOGPROBS_NAME = "logprobs.npz"


class LogprobRecorder(Recorder):
    """Collects replies of SGLang and writes them once. Without logprobs in the replies there is no file."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._rows: dict[str, Any] = {}

    def replied(self, prompt: int, reply: dict[str, Any]) -> None:
        """Keep the logprobs of one reply, if it has any.

        Args:
            prompt: Its number.
            reply: SGLang's, asked for with `token_ids_logprob`, and with `logprob_start_len=0` if for prompts too.
        """
        meta = reply["meta_info"]
        if "output_token_ids_logprobs" not in meta:
            return
        # Nothing precedes the first token, so SGLang's entry for it is None; entry i is row i - 1.
        steps = [*(meta.get("input_token_ids_logprobs") or [])[1:], *meta["output_token_ids_logprobs"]]
        self._rows[str(prompt)] = [[entry[0] for entry in step] for step in steps]

    def finish(self) -> None:
        """Write the file, under a temporary name first: a reader finds the whole file or none."""
        if not self._rows:
            return
        import numpy as np

        temporary = self._folder / f".{LOGPROBS_NAME}"
        with temporary.open("wb") as file:
            np.savez(file, allow_pickle=False, **{name: np.asarray(rows) for name, rows in self._rows.items()})
        temporary.replace(self._folder / LOGPROBS_NAME)


def read_logprobs(folder: Path) -> dict[int, np.ndarray]:
    """Return the logprobs by prompt, float64 [positions, vocabulary]; empty if the run came to no answer."""
    import numpy as np

    try:
        with np.load(folder / LOGPROBS_NAME, allow_pickle=False) as arrays:
            return {int(name): arrays[name] for name in arrays.files}
    except FileNotFoundError:
        return {}
