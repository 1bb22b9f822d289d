"""The executor on Ray: scheduling, worker pool, nodes, failures, result store."""
