"""The on-disk dump format: schema, writer, reader, store. Needs neither torch nor sglang."""
