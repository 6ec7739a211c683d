"""All GPU measurements as one command: python -m benchmarks.gpu."""
