"""What the probe `request-rows` asks of rows, counts and places, keeps and reports. Its hooks are in `probes/`."""
