"""Random traces of many conversations on a daemon's parts, checked against cold solo replays.

    trace       what is asked, and when: pure, from a seed
    play        runs a trace and checks what must hold in any case
    judge       compares every reply with the oracle

A few fixed seeds are tests; ``python -m tests.differential --minutes 10`` runs new ones for as long as wanted.
"""
