"""What ``--dry-run`` tells: the plan of a run, and the memory it needs, measured without weights."""
