"""What commands found, as models, documents and pictures on a terminal."""
