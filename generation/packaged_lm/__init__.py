"""Language models that a package index carries, as folders that a recipe names."""
