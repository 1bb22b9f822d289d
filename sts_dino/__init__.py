"""The front: one command, ``sts-dino``, over the stages (``sts_dino.cli``)."""
