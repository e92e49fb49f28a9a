"""A plain llama.cpp server, run by the Python of an environment that has xllamacpp: MODEL CELLS SLOTS THREADS.

Prints its address, serves until its standard input ends. Its slots share the cells. Extra buffer types are off: with
them, processors that announce AMX and do not have it crash (engine trap 1). All else is as it comes.
"""

import os
import sys

import xllamacpp  # type: ignore[import-not-found]  # not in the environment of the checks

model, cells, slots, threads = sys.argv[1:]
params = xllamacpp.CommonParams()
params.model.path = model
params.n_ctx = int(cells)
params.n_parallel = int(slots)
params.kv_unified = True
params.cpuparams.n_threads = params.cpuparams_batch.n_threads = int(threads)
params.no_extra_bufts = True
params.port = 0
server = xllamacpp.Server(params)
print(server.listening_address, flush=True)
sys.stdin.read()
os._exit(0)
