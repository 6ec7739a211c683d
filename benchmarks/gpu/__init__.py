"""Everything that is worth measuring on a GPU, by one command: python -m benchmarks.gpu."""
