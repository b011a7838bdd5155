"""vLLM's module paths as thin doors; nothing of its own."""
