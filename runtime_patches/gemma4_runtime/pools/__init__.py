"""KV pools as plain arithmetic, for the runtime at start and for `gemma4-triage pools`: no torch, no SGLang."""
