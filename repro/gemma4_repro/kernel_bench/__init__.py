"""Measures our kernels against SGLang's own sequence, torch.compile, eager, library norms and a copy."""
