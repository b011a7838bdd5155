"""Load on any OpenAI-compatible server, and reports of what its clients saw. Serves nothing."""
