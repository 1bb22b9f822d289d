"""The parts of ``benchmarks.engine_throughput``: models, work, baselines, the roofline, one measurement."""
