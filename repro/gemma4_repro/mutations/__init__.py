"""Mutations corrupt one entry of the live engine and are known to the byte; they measure what a diagnosis is worth."""
