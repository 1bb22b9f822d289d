"""Measure speed and memory (in a clone of the repository): ``sts-dino benchmark NAME``."""

from benchmarks import llamacpp_server, throughput
from hub.cli import new_app

app = new_app("Measure speed and memory; results go to benchmarks/results (benchmarks/README.md).")
app.command("throughput")(throughput.main)
app.command("llamacpp-server")(llamacpp_server.main)
