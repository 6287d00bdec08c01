"""The example of docs/tutorial.md: a small shop whose orders are paid, invoiced and added up."""
