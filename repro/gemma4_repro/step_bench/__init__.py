"""Measures a whole decode step of SGLang's own model runner, with our kernels and without."""
