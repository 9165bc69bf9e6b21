"""Which request runs on which slot, and from where: pure decisions, and the dispatcher that carries them out."""
