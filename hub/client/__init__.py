"""A Hub as its client sees it: repositories, publication, retries, ownership, resume."""
