"""``python -m hub_server``: the command ``hub-server``."""

from hub_server.server import main

main()
