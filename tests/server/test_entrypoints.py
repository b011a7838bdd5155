"""vLLM's module paths lead to the same server."""

from __future__ import annotations

import runpy
import sys

import pytest

from takt.config import EngineConfig, ServerOptions
from takt.server import serve as serving


@pytest.mark.parametrize(
    "module", ["takt.entrypoints.api_server", "takt.entrypoints.openai.api_server"]
)
def test_vllms_command_line_reaches_the_server(
    monkeypatch: pytest.MonkeyPatch, module: str
) -> None:
    seen: list[tuple[EngineConfig, ServerOptions]] = []

    def serve(engine: EngineConfig, server: ServerOptions) -> int:
        seen.append((engine, server))
        return 7

    monkeypatch.setattr(serving, "serve", serve)
    flags = ["--model", "some/model", "--port", "9", "--max-num-seqs", "512", "--enforce-eager"]
    monkeypatch.setattr(sys, "argv", ["api_server", *flags])
    monkeypatch.delitem(sys.modules, module, raising=False)
    with pytest.raises(SystemExit) as exit_info:
        runpy.run_module(module, run_name="__main__")
    assert exit_info.value.code == 7
    engine, server = seen[0]
    assert (engine.model.model, server.port) == ("some/model", 9)
    assert (engine.scheduler.max_num_seqs, engine.model.enforce_eager) == (512, True)


def test_unknown_flag_is_refused_with_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from takt.entrypoints.api_server import main

    with pytest.raises(SystemExit) as exit_info:
        main(["--model", "m", "--prot", "9"])
    assert exit_info.value.code == 2
    assert "--port" in capsys.readouterr().err
