"""Triton kernels, one folder per op: kernel, launch, reference, spec."""
