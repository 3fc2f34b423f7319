"""Measures what the optimisations are worth to a load: real servers of real sizes, random weights, arms interleaved."""
