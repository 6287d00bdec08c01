"""The proof by model: every verb beside a plain Python queue, and defects that must be caught."""
