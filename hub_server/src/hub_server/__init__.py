"""A Hugging Face Hub on 127.0.0.1 for tests, demos and work without a network.

Official clients reach it through ``HF_ENDPOINT``. Start it with ``hub-server serve`` (``sts-dino
hub serve``) or, from Python, with ``hub_server.process.LocalHub``. Every call that it serves:
docs/hub_server.md.
"""
