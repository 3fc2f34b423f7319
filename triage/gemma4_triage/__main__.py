"""`python -m gemma4_triage`: the command line where no console script is on the path."""

import sys

from gemma4_triage.cli.app import main

sys.exit(main())
