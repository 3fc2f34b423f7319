"""Packages that stand in for ones that have no form for a CPU; host_environment puts this folder ahead on the path."""
