"""routed_experts: the gated MLPs of the experts that a few rows chose, each weight read once, in two launches."""
