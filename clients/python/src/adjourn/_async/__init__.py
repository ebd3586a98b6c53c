"""One half of the client; the other half has the same modules."""
