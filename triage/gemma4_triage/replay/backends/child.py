"""The subprocess of one backend: reads the call, runs each variant, leaves a file for each.

What ends this process is a result too: the parent sees which variant has no file.
"""

from __future__ import annotations

import importlib
import os
import sys
from pathlib import Path

from gemma4_triage.replay import exchange
from gemma4_triage.replay.backends.contract import Refused


def main(name: str, folder: Path) -> None:
    """Run backend `name` over the call in `folder`."""
    call = exchange.read_call(folder)
    try:
        attention = importlib.import_module(f"gemma4_triage.replay.backends.{name}").prepare(call)
    except Refused as error:
        exchange.write_json(folder / exchange.REFUSAL, {"reason": str(error), "missing": error.missing})
        return
    except ImportError as error:
        exchange.write_json(folder / exchange.REFUSAL, {"reason": f"not installed: {error}", "missing": True})
        return
    about = {"device": attention.device, "dtype": attention.dtype, "note": attention.note}
    exchange.write_json(folder / exchange.ABOUT, about)
    for number, variant in enumerate(call.variants):
        try:
            exchange.write_output(folder, number, attention.run(variant))
        # Broad on purpose: whatever a kernel raises is the result of this variant.
        except Exception as error:  # noqa: BLE001
            text = f"{type(error).__name__}: {error}"
            exchange.write_json(folder / f"{number}.json", {"error": text[:2000]})
            if "CUDA" in text:
                # The context is lost, and every later call would report this same error.
                break
    sys.stdout.flush()
    sys.stderr.flush()
    # A lost CUDA context can hang in destructors.
    os._exit(0)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
