"""`takt pull` and `takt models`."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table

from takt.loading.hub import list_models, resolve_model
from takt.server.progress import show_progress


def run_pull(name: str) -> None:
    with show_progress(Console(stderr=True)) as on_progress:
        resolved = resolve_model(name, on_progress)
    Console(highlight=False).print(str(resolved.path), soft_wrap=True, markup=False)


def run_models() -> None:
    table = Table("name", "in the cache", "size")
    for model in list_models():
        size = f"{model.num_bytes / 1e6:,.0f} MB" if model.num_bytes else "-"
        table.add_row(model.name, "yes" if model.is_cached else "no", size)
    console = Console()
    console.print(table)
    console.print("Any Hub id, GGUF file or Hugging Face directory works as well.")
