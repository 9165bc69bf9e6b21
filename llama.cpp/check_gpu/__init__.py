"""`make check-gpu`: one prepared check of lcpd's engine on a machine with an NVIDIA GPU and no network.

`pack` makes, with network, a small folder with all that the other machine lacks; `main` runs there, each step in a
process of its own under a time limit; `docs/gpu.md` says what is checked and why.
"""
