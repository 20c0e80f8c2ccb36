"""Configuration and start of the compared gateways and of the instant runtime behind them.

Every peer is configured as its documentation recommends for production and speed: one worker per core where it has
workers, connections kept alive, no access log, no telemetry. All listen on loopback only.
"""

from __future__ import annotations

import json
import os
import subprocess
import time
import urllib.request
from dataclasses import dataclass, field
from pathlib import Path
from string import Template
from typing import ClassVar

import installing
from processes import Failed, free_port

CORES = len(os.sched_getaffinity(0))
COMPLETION_TEXT = "The Danube flows through Vienna and empties into the Black Sea."


@dataclass
class Peer:
    """A gateway in front of the instant runtime. Subclasses set the class attributes."""

    folder: Path  # on a real disk, kept for the whole run
    port: int
    runtime_port: int

    name: ClassVar[str]
    setup: ClassVar[str]  # its description in the report
    warm_up_seconds: ClassVar[int] = 2
    start_seconds: ClassVar[int] = 20
    share_of_time: ClassVar[float] = 1.0  # slow peers are measured for less time

    def install(self) -> None:
        """Installs it, or raises `Unavailable`."""

    def version(self) -> str:
        raise NotImplementedError

    def command(self) -> list[str]:
        """Writes its configuration to its folder, and returns its command line."""
        raise NotImplementedError

    def environment(self) -> dict[str, str]:
        return dict(os.environ)

    def headers(self) -> dict[str, str]:
        """Headers that a caller must send. The peer must be listening."""
        return {"Authorization": "Bearer sk-bench"}

    def after_load(self, requests: int) -> str | None:
        """A remark for the report, measured while the peer still runs, after `requests` requests."""
        return None

    def after_stop(self, exit_code: int) -> str | None:
        """A remark for the report if it did not stop properly."""
        return None


class InstantRuntime(Peer):
    """Responds to any request immediately with the same completion, and counts requests."""

    name = "instant runtime"
    setup = "nginx, 1 worker, a fixed completion"

    def install(self) -> None:
        installing.debian_tool("nginx")

    def command(self) -> list[str]:
        usage = {"prompt_tokens": 41, "completion_tokens": 14, "total_tokens": 55}
        choice = {"index": 0, "message": {"role": "assistant", "content": COMPLETION_TEXT}, "finish_reason": "stop"}
        completion = {
            "id": "chatcmpl-instant", "object": "chat.completion", "created": 1735689600, "model": "instant",
            "choices": [choice], "usage": usage,
        }
        models = {"object": "list", "data": [{"id": "instant", "object": "model"}]}
        return _nginx(self.folder, workers=1, port=self.port, upstream="", locations=f"""
            location = /v1/models {{ return 200 '{json.dumps(models)}'; }}
            location = /counted {{ stub_status; }}
            location / {{ return 200 '{json.dumps(completion)}'; }}""")

    def served(self) -> int:
        """The number of requests served, without this one."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/counted", timeout=5) as response:
            _accepted, _handled, requests = response.read().splitlines()[2].split()
        return int(requests) - 1


class Nginx(Peer):
    name = "nginx"
    setup = f"plain proxy, {CORES} workers, 64 upstream connections kept alive; no keys, no validation, no record"

    def install(self) -> None:
        installing.debian_tool("nginx")

    def version(self) -> str:
        said = subprocess.run([installing.debian_tool("nginx"), "-v"], capture_output=True, text=True).stderr
        return said.strip().rpartition("/")[2]

    def command(self) -> list[str]:
        upstream = f"""
            upstream runtime {{
                server 127.0.0.1:{self.runtime_port};
                keepalive 64;
                keepalive_requests 1000000000;
            }}"""
        return _nginx(self.folder, workers=CORES, port=self.port, upstream=upstream, locations="""
            location / {
                proxy_pass http://runtime;
                proxy_http_version 1.1;
                proxy_set_header Connection "";
            }""")


@dataclass
class Adriaticum(Peer):
    binary: Path

    name = "adriaticum"
    setup = "key looked up, request validated in full, a durable SQLite row before each response"

    _key: str | None = field(default=None, init=False)
    console_port: int = field(default_factory=free_port, init=False)
    _ops_port: int = field(default_factory=free_port, init=False)

    def install(self) -> None:
        if not self.binary.exists():
            raise installing.Unavailable(f"the binary is not there; `make dist` makes it:\n{self.binary}")

    def version(self) -> str:
        return self.run("--version").rpartition(" ")[2]

    def command(self) -> list[str]:
        return [str(self.binary), "serve"]

    def environment(self) -> dict[str, str]:
        others = {name: value for name, value in os.environ.items() if not name.startswith("ADRIATICUM_")}
        return others | {
            "ADRIATICUM_DATA_DIR": str(self.folder / "data"),
            "ADRIATICUM_API_LISTEN": f"127.0.0.1:{self.port}",
            "ADRIATICUM_API_BASE_URL": f"http://localhost:{self.port}/v1",
            "ADRIATICUM_CONSOLE_LISTEN": f"127.0.0.1:{self.console_port}",
            "ADRIATICUM_CONSOLE_BASE_URL": f"http://localhost:{self.console_port}",
            "ADRIATICUM_OPS_LISTEN": f"127.0.0.1:{self._ops_port}",
            "ADRIATICUM_RUNTIME_URLS": f"http://127.0.0.1:{self.runtime_port}/v1",
            "ADRIATICUM_MODEL": "none",
        }

    def metrics(self) -> str:
        with urllib.request.urlopen(f"http://127.0.0.1:{self._ops_port}/metrics", timeout=10) as response:
            return response.read().decode()

    def headers(self) -> dict[str, str]:
        if self._key is None:
            self._key = self.run("keys", "create", "bench")
        return {"Authorization": f"Bearer {self._key}"}

    def after_load(self, requests: int) -> str | None:
        arguments = ("usage", "--requests", "--limit", "1", "--json")
        start = time.monotonic()
        self.run(*arguments)
        took = 1000 * (time.monotonic() - start)
        return f"`adriaticum {' '.join(arguments)}`, beside the server, after {requests:,} requests: {took:.0f} ms."

    def after_stop(self, exit_code: int) -> str | None:
        return f"adriaticum did not stop cleanly: exit {exit_code}." if exit_code else None

    def run(self, *arguments: str) -> str:
        command = " ".join(["adriaticum", *arguments])
        # In its own folder, so that no other adriaticum.toml is read.
        try:
            done = subprocess.run(
                [self.binary, *arguments], cwd=self.folder, env=self.environment(), check=True,
                stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=30,
            )
        except subprocess.CalledProcessError as error:
            raise Failed(f"`{command}` exited with {error.returncode}:\n{error.stderr}") from error
        except (OSError, subprocess.TimeoutExpired) as error:
            raise Failed(f"`{command}` failed:\n{error}") from error
        return done.stdout.strip()


@dataclass
class LimitedAdriaticum(Adriaticum):
    """The same, with a key that has every kind of limit, none of which is reached."""

    name = "adriaticum-limited"
    setup = "as above, with a tokens budget, a requests budget, a rate and a limit of requests in flight on the key"

    LIMITS: ClassVar[tuple[str, ...]] = (
        "tokens-per-day", "requests-per-month", "requests-per-minute", "requests-in-flight",
    )

    def headers(self) -> dict[str, str]:
        if self._key is None:
            budgets = (f"--budget={limit}=1000000000000" for limit in self.LIMITS)
            self._key = self.run("keys", "create", "bench", *budgets)
        return {"Authorization": f"Bearer {self._key}"}


class Portkey(Peer):
    name = "portkey"
    setup = f"`@portkey-ai/gateway`, {CORES} processes by Node's cluster module; no keys, no record"
    warm_up_seconds = 8  # its just-in-time compiler needs that long

    def install(self) -> None:
        installing.portkey_server()

    def version(self) -> str:
        return installing.PORTKEY_VERSION

    def command(self) -> list[str]:
        start = Path(__file__).with_name("portkey.cjs")
        return ["node", str(start), f"--port={self.port}", "--headless"]

    def environment(self) -> dict[str, str]:
        server = str(installing.portkey_server())
        return dict(os.environ) | {"NODE_ENV": "production", "BENCH_WORKERS": str(CORES), "BENCH_PORTKEY": server}

    def headers(self) -> dict[str, str]:
        return super().headers() | {
            "x-portkey-provider": "openai",
            "x-portkey-custom-host": f"http://127.0.0.1:{self.runtime_port}/v1",
        }


class LiteLLM(Peer):
    name = "litellm"
    setup = f"`litellm[proxy]`, {CORES} uvicorn workers, master key checked; no database, so no record"
    warm_up_seconds = 5
    start_seconds = 120
    share_of_time = 0.5

    def install(self) -> None:
        installing.litellm_command()

    def version(self) -> str:
        return installing.LITELLM_VERSION

    def command(self) -> list[str]:
        config = self.folder / "config.yaml"
        config.write_text(LITELLM_CONFIG.substitute(runtime_port=self.runtime_port))
        return [
            str(installing.litellm_command()), "--config", str(config), "--host", "127.0.0.1",
            "--port", str(self.port), "--num_workers", str(CORES), "--telemetry", "False",
        ]

    def environment(self) -> dict[str, str]:
        return dict(os.environ) | {
            "LITELLM_MODE": "PRODUCTION",
            "LITELLM_LOG": "ERROR",
            "LITELLM_LOCAL_MODEL_COST_MAP": "True",  # otherwise it downloads prices when it starts
        }


LITELLM_CONFIG = Template("""\
model_list:
  - model_name: adriaticum
    litellm_params:
      model: openai/instant
      api_base: http://127.0.0.1:$runtime_port/v1
      api_key: none
litellm_settings:
  set_verbose: false
  request_timeout: 600
general_settings:
  master_key: sk-bench
""")

NGINX_CONFIG = Template("""\
daemon off;
worker_processes $workers;
pid $folder/nginx.pid;
error_log stderr error;
events {
    worker_connections 1024;
}
http {
    access_log off;
    default_type application/json;
    keepalive_timeout 300s;
    keepalive_requests 1000000000;
    client_body_temp_path $folder/bodies;
    proxy_temp_path $folder/answers;
    fastcgi_temp_path $folder/fastcgi;
    uwsgi_temp_path $folder/uwsgi;
    scgi_temp_path $folder/scgi;
    $upstream
    server {
        listen 127.0.0.1:$port;
        $locations
    }
}
""")


def _nginx(folder: Path, workers: int, port: int, upstream: str, locations: str) -> list[str]:
    """Writes an nginx configuration that uses nothing outside `folder`; returns the command line."""
    config = folder / "nginx.conf"
    config.write_text(NGINX_CONFIG.substitute(
        folder=folder, workers=workers, port=port, upstream=upstream, locations=locations,
    ))
    return [installing.debian_tool("nginx"), "-e", "stderr", "-p", str(folder), "-c", str(config)]
