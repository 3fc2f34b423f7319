"""YOCO fast prefill: KV-shared layers write no keys, so a prefill needs them at each request's last token alone."""
