"""Reproductions: scenarios, workloads, toy checkpoints and the runner."""
