"""One zip of what a live, hanging or dead server shows: asked for, read and packed, nothing changed."""
