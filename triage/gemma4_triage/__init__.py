"""The command line: inspect, diagnose and replay dumps, run reproductions."""
