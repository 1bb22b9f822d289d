"""No test may leave this machine, nor see what its user set or downloaded."""

from isolation import isolate_environment

isolate_environment()
