"""Public issues of SGLang as data: one TOML file each in `records/`, and what in a log is one of them."""
