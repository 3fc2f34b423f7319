"""One file per real backend, run as a subprocess: `python -m gemma4_triage.replay.backends.child NAME FOLDER`.

A backend's module has `prepare(call)`, which raises `Refused` or returns an `Attention`. Of the whole command line
these modules alone import torch.
"""
