"""How many tokens a text has, asked of the server."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from takt.bench.http_client import HttpClient, ServerError

Shape = Callable[[str], dict[str, Any]]


class TokenCounter:
    """Counts with the server's `/tokenize`, begin token included where the server adds one."""

    def __init__(self, client: HttpClient, shape: Shape) -> None:
        self._client = client
        self._shape = shape

    @classmethod
    async def find(cls, client: HttpClient, model: str, *, is_chat: bool) -> TokenCounter | None:
        """A counter in the shape that the server knows: vLLM's or llama.cpp's; None for neither.

        llama.cpp's counts no chat template, so a chat has none there.
        """

        def vllm(text: str) -> dict[str, Any]:
            if is_chat:
                return {"model": model, "messages": [{"role": "user", "content": text}]}
            return {"model": model, "prompt": text}

        def llama_cpp(text: str) -> dict[str, Any]:
            return {"content": text, "add_special": True}

        for shape in (vllm,) if is_chat else (vllm, llama_cpp):
            counter = cls(client, shape)
            try:
                # A server that ignores fields it does not know answers the wrong shape with no
                # tokens at all.
                if await counter.count("one two") > await counter.count("one"):
                    return counter
            except ServerError:
                continue
        return None

    async def count(self, text: str) -> int:
        """Raises `ServerError`."""
        answer = await self._client.fetch_json("POST", "/tokenize", self._shape(text))
        try:
            return len(answer["tokens"])
        except (KeyError, TypeError):
            raise ServerError("/tokenize gave no tokens") from None
