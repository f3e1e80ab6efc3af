"""How `plan="auto"` decides what runs fastest: by trying it on the user's module and batch."""
