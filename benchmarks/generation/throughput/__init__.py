"""The parts of ``benchmarks.generation.engine_throughput``: models, work, baselines, the roofline, one measurement."""
