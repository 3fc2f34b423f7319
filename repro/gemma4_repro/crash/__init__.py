"""What `gemma4-triage repro crash` runs: the published crashes on real weights, one cell of a matrix at a time."""
