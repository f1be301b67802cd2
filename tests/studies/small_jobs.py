"""What a process of a test does: ``python -m tests.studies.small_jobs WORD ...``."""

import os
import signal
import sys
import time

word, *rest = sys.argv[1:]
if word == "end":
    sys.stderr.write("first line\nlast line\n")
    sys.exit(int(rest[0]))
if word == "threads":
    sys.stderr.write(os.environ["OMP_NUM_THREADS"] + os.environ["NUMBA_NUM_THREADS"])
if word == "die":
    os.kill(os.getpid(), getattr(signal, rest[0]))
if word == "tell":
    sys.stdout.write('["steps", 1, 9, ""]\nnonsense\n["steps", 3, 9, "loss 1"]\n["st')
    sys.stdout.flush()
    time.sleep(float(rest[0]))
if word == "wait":
    time.sleep(float(rest[0]))
if word == "stay":
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    sys.stdout.write('["ready", 1, 1, ""]\n')
    sys.stdout.flush()
    time.sleep(600)
if word == "flood":
    sys.stdout.write('["steps", 1, 9, ""]\n' * 30_000 + '["steps", 2, 9, "end"]\n')
