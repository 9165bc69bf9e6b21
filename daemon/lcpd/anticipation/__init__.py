"""What the next turn of a conversation begins with, computed while its client runs a tool or its user types."""
