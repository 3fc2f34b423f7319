"""How SGLang sizes Gemma-4's two KV pools, and which ratio between them fits a load. Plain arithmetic: no torch."""
