"""MTEB tasks, scored with the mteb library."""
