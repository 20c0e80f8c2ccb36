"""Installs the programs that the benchmark compares, once, at pinned versions.

Debian's packages are installed in the system (which needs root), the others in the user's cache. A program that cannot
be installed raises `Unavailable`: the tables omit its peer, with that reason.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

PORTKEY_VERSION = "1.15.2"  # npm: @portkey-ai/gateway
LITELLM_VERSION = "1.105.3"  # PyPI: litellm[proxy]
XLLAMACPP_VERSION = "2026.10.11549"  # PyPI: xllamacpp, with llama.cpp b11549
DEBIAN_PACKAGES = {"nginx": "nginx-light", "wrk": "wrk", "npm": "npm"}

CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "adriaticum"
PEERS = CACHE / "peers"
INSTALL_TIMEOUT_SECONDS = 1200
SERVICE_POLICY = Path("/usr/sbin/policy-rc.d")


class Unavailable(Exception):
    """A program is missing and cannot be installed; the message has the reason and a remedy."""


def debian_tool(name: str) -> str:
    """The path of a program from Debian's packages; installs it if necessary."""
    path = _which(name)
    if path is None:
        package = DEBIAN_PACKAGES[name]
        if os.geteuid() != 0 or _which("apt-get") is None:
            raise Unavailable(f"{name} is missing; install Debian's package {package}")
        environment = os.environ | {"DEBIAN_FRONTEND": "noninteractive"}
        with _services_left_alone():
            _install("Debian's package lists", ["apt-get", "update"], environment)
            _install(package, ["apt-get", "install", "--yes", "--no-install-recommends", package], environment)
        path = _which(name)
    if path is None:
        raise Unavailable(f"{name} is missing although its package is installed")
    return path


def portkey_server() -> Path:
    """The script that starts Portkey's gateway."""
    folder = PEERS / f"portkey-{PORTKEY_VERSION}"
    server = folder / "node_modules/@portkey-ai/gateway/build/start-server.js"
    if not server.exists():
        npm = debian_tool("npm")
        folder.mkdir(parents=True, exist_ok=True)
        package = f"@portkey-ai/gateway@{PORTKEY_VERSION}"
        _install(package, [npm, "install", "--prefix", str(folder), "--no-audit", "--no-fund", package])
    return server


def litellm_command() -> Path:
    """The `litellm` command in its virtual environment."""
    folder = PEERS / f"litellm-{LITELLM_VERSION}"
    command = folder / "bin/litellm"
    if not command.exists():
        _install_from_pypi(f"litellm[proxy]=={LITELLM_VERSION}", folder)
    return command


def xllamacpp_python() -> Path:
    """The Python of a virtual environment with `xllamacpp`."""
    folder = PEERS / f"xllamacpp-{XLLAMACPP_VERSION}"
    if not any(folder.glob(f"lib/python*/site-packages/xllamacpp-{XLLAMACPP_VERSION}.dist-info/RECORD")):
        _install_from_pypi(f"xllamacpp=={XLLAMACPP_VERSION}", folder)
    return folder / "bin/python"


def _which(name: str) -> str | None:
    # Debian's nginx is in /usr/sbin, which is not in every user's PATH.
    return shutil.which(name, path=os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin"]))


def _install_from_pypi(package: str, folder: Path) -> None:
    """Creates a virtual environment with the package in `folder`."""
    _install("a virtual environment", [sys.executable, "-m", "venv", "--clear", str(folder)])
    _install(package, [str(folder / "bin/pip"), "install", package])


def _install(what: str, command: list[str], environment: dict[str, str] | None = None) -> None:
    print(f"installing {what}: {' '.join(command)}", file=sys.stderr, flush=True)
    try:
        subprocess.run(
            command, env=environment, check=True, timeout=INSTALL_TIMEOUT_SECONDS, text=True,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )
    except subprocess.CalledProcessError as error:
        end = "\n".join(line[:200] for line in error.stdout.splitlines()[-10:])
        raise Unavailable(f"{what} could not be installed:\n{end}") from error
    except (OSError, subprocess.TimeoutExpired) as error:
        raise Unavailable(f"{what} could not be installed:\n{error}") from error


@contextlib.contextmanager
def _services_left_alone() -> Iterator[None]:
    """Keeps Debian from starting nginx when it installs the package (exit 101 denies it)."""
    if SERVICE_POLICY.exists():
        yield
        return
    SERVICE_POLICY.write_text("#!/bin/sh\nexit 101\n")
    SERVICE_POLICY.chmod(0o755)
    try:
        yield
    finally:
        SERVICE_POLICY.unlink()
