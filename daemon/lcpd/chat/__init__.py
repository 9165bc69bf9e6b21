"""Chat templates, request schemas, tokenisation and reply parsing, in a process of their own.

That code is native and its input comes from clients: it may abort, loop or eat memory.  It runs under limits in the
chat process, which is restarted when it dies; the daemon holds the client half.
"""
