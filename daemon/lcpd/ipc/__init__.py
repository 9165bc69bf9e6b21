"""How the daemon talks to its child processes: framing, channels and child processes.

A socketpair connects the daemon with each child, so there is no path that another process could open.  A message is
a msgspec struct in MessagePack behind a 4-byte little-endian length.  File descriptors go over it too, once, when
the channel is opened.
"""
