"""Measure qk_norm_rope: with the options of `gemma4-triage bench kernels`, of which this is one op."""

import sys

from gemma4_triage.cli.app import main

if __name__ == "__main__":
    # As typed there: the rows carry the command that they come from.
    sys.argv[1:1] = ["bench", "kernels", "--ops", "qk_norm_rope"]
    sys.exit(main())
