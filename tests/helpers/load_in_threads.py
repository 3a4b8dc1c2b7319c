"""Load a traced module for the first time in two threads, or in a thread and a child: `... PATH threads|fork`."""

import faulthandler
import os
import sys
import threading
import time

import megengine as mge

path, way = sys.argv[1:]
faulthandler.dump_traceback_later(30, exit=True)
loaded: list[object] = []
thread = threading.Thread(target=lambda: loaded.append(mge.load(path)))
thread.start()
time.sleep(0.01)
if way == "fork":
    child = os.fork()
    if child == 0:
        mge.load(path)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
else:
    loaded.append(mge.load(path))
    loaded.pop()
thread.join()
sys.exit(len(loaded) != 1)
