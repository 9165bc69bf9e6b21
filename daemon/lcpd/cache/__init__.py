"""The prompt cache: state bytes in an arena of host RAM, and what is known about them."""
