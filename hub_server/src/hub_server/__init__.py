"""The embedded Hub: the Hugging Face Hub's HTTP API on 127.0.0.1, for the demo, for tests and for air-gapped work.

Official clients reach it through ``HF_ENDPOINT``. Start it with ``hub-server serve`` (``sts-dino hub serve``) or, from
Python, with ``hub_server.process.LocalHub``. Models and datasets,
public or private, uploads and downloads by Xet and LFS, pages for people; no Spaces. All of it,
call by call: docs/hub_server.md.
"""
