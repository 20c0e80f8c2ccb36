"""Runs llama.cpp's server from the wheel `xllamacpp`: python wheel_server.py MODEL PORT.

Runs in the wheel's own virtual environment and serves until SIGTERM. All settings are the defaults of the `llama-server`
command, except that the wheel defaults to 1 slot, where the command lets llama.cpp choose; so it is set here.
"""

import signal
import sys

import xllamacpp

AUTOMATIC = -1

params = xllamacpp.CommonParams()
params.model.path = sys.argv[1]
params.hostnames = ["127.0.0.1"]
params.port = int(sys.argv[2])
params.n_parallel = AUTOMATIC

signal.signal(signal.SIGTERM, lambda *_: sys.exit())
server = xllamacpp.Server(params)  # serves from its own threads while this object lives
while True:
    signal.pause()
