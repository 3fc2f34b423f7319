"""Rebuilds the attention call of a dump and runs it: in fp64 here, and on real backends in subprocesses."""
