"""A real llama.cpp server, run by the Python of an environment that has xllamacpp: MODEL WINDOW SLOTS.

Prints its address, serves until its standard input ends. Extra buffer types are off: with them, processors that announce
AMX and do not have it crash (engine trap 1).
"""

import os
import sys

import xllamacpp  # type: ignore[import-not-found]  # not in the environment of the checks

params = xllamacpp.CommonParams()
params.model.path = sys.argv[1]
params.n_ctx = int(sys.argv[2]) * int(sys.argv[3])
params.n_parallel = int(sys.argv[3])
params.cpuparams.n_threads = 1  # two of them wait for each other where anything else runs
params.no_extra_bufts = True
params.warmup = False
params.port = 0
server = xllamacpp.Server(params)
print(server.listening_address, flush=True)
sys.stdin.read()
os._exit(0)
