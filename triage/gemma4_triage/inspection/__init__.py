"""What a dump says, computed once for the terminal and for JSON."""
