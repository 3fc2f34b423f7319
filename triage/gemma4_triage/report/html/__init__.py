"""A report as one HTML file without a script, a font or an address of anything outside."""
