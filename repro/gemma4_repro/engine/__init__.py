"""Starts SGLang's engine in processes of its own, one per arm, and reads what each left behind."""
