"""Everything that touches compiled llama.cpp code.

Only the worker and the chat process import the modules of this package; the daemon never does, because native
code can abort, loop or exhaust memory, and the daemon must outlive that.
"""

ABI = 2
"""The ``LCPD_ABI`` of ``llama.cpp/bridge/lcpd_bridge.h`` that this package speaks."""
