"""The whole chain at demo size: every stage by its own command, against the embedded Hub."""
