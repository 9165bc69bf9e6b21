"""Everything that can die, hang, lie or fill up does so here, at instants drawn from a seed, and nothing may be lost.

    served      a daemon's parts and its HTTP server in this process, with a real worker that can be hurt
    judging     every reply against the oracle, and against the undisturbed reply
    recompute   what a crash cost, in tokens, from the worker's messages
    kills       kill -9 of the worker and of the daemon under load
    corruption  damage to stored files

The tests are short forms of these; ``python -m tests.faults --minutes N --seed S`` runs the long ones.
"""
