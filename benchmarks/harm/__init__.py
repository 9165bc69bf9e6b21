"""What the fault tests (tests/faults) and the soak run share: a real daemon to hurt, load, and figures of its growth.

daemon      lcpd as a process that is killed, stopped and started again on the same port
load        streamed requests whose replies are kept token by token, and what a client saw of errors
talk        what is asked: conversations that grow, share heads and begin anew; the same for the same seed
rude        clients that read nothing, vanish, or never finish what they send
growth      samples of memory, descriptors and files, and whether they grow without bound
"""
