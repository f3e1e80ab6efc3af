"""One function called on several local ranks."""
