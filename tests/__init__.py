"""Why to believe the book."""
