"""What a dataset run keeps on disk: layout, run directory, journal, scratch files, code digest."""
