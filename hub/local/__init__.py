"""The embedded Hub: the Hugging Face Hub's HTTP API on 127.0.0.1, for the demo, for tests and for air-gapped work.

It is spoken to only through the official clients and ``HF_ENDPOINT``. Start it with ``python -m hub.local serve`` or,
from Python, with ``hub.local.process.LocalHub``. Models and datasets, plain LFS uploads: clients need
``HF_HUB_DISABLE_XET=1`` (``LocalHub.env`` sets it).
"""
