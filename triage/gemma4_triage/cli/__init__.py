"""Command-line verbs, one file each; app.py is the error boundary."""
