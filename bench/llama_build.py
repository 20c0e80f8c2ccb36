"""The servers of llama.cpp and of ik_llama.cpp, built for this machine.

One flag avoids a defect of llama.cpp's f16 attention. Where the compiler defines `__AVX512FP16__` (`-march=native` on Sapphire
Rapids and later), it computes with f16 in steps of 128 numbers, and the remainder one by one; heads of 64 dimensions are all
remainder. The other is `-fno-dse`, without which GCC 12 drops a store from which the tile configuration of AMX is read.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
from pathlib import Path

import installing

BUILD_SECONDS = 3600
OPTIONS = (
    "-DCMAKE_BUILD_TYPE=Release", "-DBUILD_SHARED_LIBS=ON", "-DCMAKE_BUILD_RPATH_USE_ORIGIN=ON", "-DGGML_NATIVE=OFF",
    "-DLLAMA_BUILD_TESTS=OFF", "-DLLAMA_BUILD_UI=OFF", "-DLLAMA_OPENSSL=OFF", "-DLLAMA_CURL=OFF",
)


def server(source: Path, cpu: str) -> Path:
    """Builds it in the user's cache, unless it exists there."""
    source = source.resolve()
    kernels = source / "ggml/src/ggml-quants.c"
    if not kernels.exists():
        raise installing.Unavailable(f"this is no checkout of llama.cpp or ik_llama.cpp:\n{source}")
    version = hashlib.sha256(kernels.read_bytes()).hexdigest()[:12]
    folder = installing.PEERS / f"llama-server-{version}-{cpu}"
    program = folder / "bin/llama-server"
    if not program.exists():
        _build(source, folder, f"-march={cpu} -U__AVX512FP16__")
    return program


def _build(source: Path, folder: Path, flags: str) -> None:
    print(f"building the server of {source} with {flags} (minutes)", flush=True)
    configure = [
        "cmake", "-S", source, "-B", folder, *OPTIONS, f"-DCMAKE_C_FLAGS={flags}", f"-DCMAKE_CXX_FLAGS={flags} -fno-dse",
    ]
    build = ["cmake", "--build", folder, "--target", "llama-server", "--parallel", str(os.cpu_count() or 1)]
    for command in (configure, build):
        done = subprocess.run(
            command, timeout=BUILD_SECONDS, text=True, errors="replace",
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )
        if done.returncode != 0:
            raise installing.Unavailable(f"{source} could not be built:\n{done.stdout[-2000:]}")
