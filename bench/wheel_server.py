"""llama.cpp's server out of the wheel `xllamacpp`, as a program: python wheel_server.py MODEL PORT.

Runs in the wheel's own virtual environment and serves until SIGTERM. Everything is left at the default of the
`llama-server` command. The wheel's own differs from that in one setting, the slots: it has 1, where the command
asks for as many as llama.cpp thinks best.
"""

import signal
import sys

import xllamacpp

AS_MANY_AS_LLAMA_CPP_THINKS_BEST = -1

params = xllamacpp.CommonParams()
params.model.path = sys.argv[1]
params.hostnames = ["127.0.0.1"]
params.port = int(sys.argv[2])
params.n_parallel = AS_MANY_AS_LLAMA_CPP_THINKS_BEST

signal.signal(signal.SIGTERM, lambda *_: sys.exit())
server = xllamacpp.Server(params)  # it serves from threads of its own, for as long as this object lives
while True:
    signal.pause()
