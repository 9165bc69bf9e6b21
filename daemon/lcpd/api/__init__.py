"""The HTTP side: validate, translate, stream; one error vocabulary for all dialects."""
