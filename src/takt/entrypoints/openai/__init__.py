"""vLLM's path of its OpenAI-compatible server."""
