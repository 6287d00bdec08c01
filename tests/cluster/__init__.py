"""Where one server is not enough: a cluster, and sentinels."""
