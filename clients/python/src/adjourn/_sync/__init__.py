# Made from _async/__init__.py by scripts/gen. Do not edit.
"""One half of the client; the other half has the same modules."""
