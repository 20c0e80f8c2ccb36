"""llama.cpp's server, built for this machine.

Built twice from the same source: as it comes, and with a flag that mends a defect of its f16 attention. Where the compiler
defines `__AVX512FP16__` (`-march=native` on Sapphire Rapids and later), llama.cpp computes with f16 in steps of 128
numbers, and what is left one by one; heads of 64 dimensions are all left. Only the kernels are compiled a second time.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

import installing

FLAG = "-U__AVX512FP16__"
BUILD_SECONDS = 3600
OPTIONS = (
    "-DCMAKE_BUILD_TYPE=Release", "-DBUILD_SHARED_LIBS=ON", "-DCMAKE_BUILD_RPATH_USE_ORIGIN=ON", "-DGGML_NATIVE=OFF",
    "-DLLAMA_BUILD_TESTS=OFF", "-DLLAMA_BUILD_EXAMPLES=OFF", "-DLLAMA_BUILD_UI=OFF", "-DLLAMA_OPENSSL=OFF",
)


@dataclass(frozen=True)
class Servers:
    native: Path
    flagged: Path


def servers(source: Path, cpu: str) -> Servers:
    """Builds both in the user's cache, unless they are there."""
    source = source.resolve()
    if not (source / "tools/server/CMakeLists.txt").exists():
        raise installing.Unavailable(f"this is no checkout of llama.cpp:\n{source}")
    version = hashlib.sha256((source / "ggml/src/ggml-cpu/ops.cpp").read_bytes()).hexdigest()[:12]
    folder = installing.PEERS / f"llama-server-{version}-{cpu}"
    native, flagged = folder / "native/bin/llama-server", folder / "flagged/bin/llama-server"
    # GCC 12 drops a store that the tile configuration of AMX is read from, without `-fno-dse`.
    flags = f"-march={cpu}"
    if not native.exists():
        _build(source, native.parents[1], flags, "llama-server")
    if not flagged.exists():
        kernels = folder / "flagged-kernels"
        _build(source, kernels, f"{flags} {FLAG}", "ggml-cpu")
        shutil.copytree(native.parent, flagged.parent, symlinks=True, dirs_exist_ok=True)
        for library in (kernels / "bin").glob("libggml-cpu.so*"):
            (flagged.parent / library.name).unlink(missing_ok=True)
            shutil.copy2(library, flagged.parent, follow_symlinks=False)
    return Servers(native, flagged)


def _build(source: Path, folder: Path, flags: str, target: str) -> None:
    print(f"building llama.cpp's {target} with {flags} (minutes)", flush=True)
    configure = [
        "cmake", "-S", source, "-B", folder, *OPTIONS, f"-DCMAKE_C_FLAGS={flags}", f"-DCMAKE_CXX_FLAGS={flags} -fno-dse",
    ]
    build = ["cmake", "--build", folder, "--target", target, "--parallel", str(os.cpu_count() or 1)]
    for command in (configure, build):
        done = subprocess.run(
            command, timeout=BUILD_SECONDS, text=True, errors="replace",
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )
        if done.returncode != 0:
            raise installing.Unavailable(f"llama.cpp could not be built:\n{done.stdout[-2000:]}")
