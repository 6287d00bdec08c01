"""The transitions: one Lua script a file, each run by one EVALSHA."""
