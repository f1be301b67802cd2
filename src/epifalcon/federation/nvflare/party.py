"""The long-running process of a server or a site, from its kit.

``python -m epifalcon.federation.nvflare.party KIT``: NVFlare's own program in the
foreground, without the scripts of its kits that start it again for ever.
"""

import os
import runpy
import signal
import sys
from pathlib import Path

from epifalcon.federation.nvflare.job_process import end_with_parent
from epifalcon.federation.nvflare.kits import open_kit

PARENT = "EPIFALCON_PARENT"
"""Environment: the process without which this one should not go on."""


def main() -> None:
    """Run the party whose kit is the only argument."""
    kit = open_kit(Path(sys.argv[1]), "server", "site")
    if parent := os.environ.pop(PARENT, ""):
        end_with_parent(int(parent))
    # Until NVFlare is up (see CleanStop) both signals just end the process.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    role, program, options = "server", "server_train", []
    if kit.kind == "site":
        role, program = "client", "client_train"
        beat = kit.deployment.heartbeat_seconds
        options = [f"uid={kit.name}", f"heart_beat_interval={beat}"]
    module = f"nvflare.private.fed.app.{role}.{program}"
    sys.argv = [module, "-m", str(kit.folder), "-s", f"fed_{role}.json", "--set"]
    sys.argv += ["secure_train=true", "org=epifalcon", "config_folder=config", *options]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
