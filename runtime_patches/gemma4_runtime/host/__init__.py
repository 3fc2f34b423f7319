"""CPU stand-ins for CUDA-only functions: the host engine."""
