"""`python -m takt.entrypoints.openai.api_server --model ...`: the same door."""

from __future__ import annotations

from takt.entrypoints.api_server import main

if __name__ == "__main__":
    main()
