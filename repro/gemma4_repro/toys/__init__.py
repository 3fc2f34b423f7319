"""The toys: a small trained Gemma-4 checkpoint pair (target and MTP assistant), and how they are made."""

from gemma4_repro.toys.locate import toy_path

__all__ = ["toy_path"]
