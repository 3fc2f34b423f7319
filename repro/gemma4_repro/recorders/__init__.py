"""Recorders are hooks that write down what an engine does. They run inside its processes and are harness only."""
