"""Makes and trains the toy checkpoints."""
