"""The contract's wire-level scenarios, one test each, with its number in the name.

README.md beside this file says which scenario is where, which ones come with a later feature,
and in what our wire differs.
"""
