"""Compile llama.cpp and the bridge, keep the results side by side, and say which one is in use.

Importing this package is cheap: it reads no file and loads neither native code nor the build machinery.
"""

from lcpd.build.record import Build, BuildMissing, active, require_active

__all__ = ["Build", "BuildMissing", "active", "require_active"]
