"""Everything about a finished run: its record, how it is made, written, read and shown."""
