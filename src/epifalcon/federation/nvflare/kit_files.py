"""What stands in a kit beside its certificates: rights, allowed classes, logs.

Plain mappings, written as JSON by ``kits``; NVFlare reads them when a process
starts.
"""

from typing import Any

from epifalcon.federation.nvflare.deployment import Deployment

HERE = "epifalcon.federation.nvflare"
STATE = "state"
"""The folder of a kit that holds its job store, snapshots and temporary files."""
_MOST_SITES = 10_000
PLUMBING = (
    f"{HERE}.ends.Controller",
    f"{HERE}.ends.CoordinatorEnd",
    f"{HERE}.ends.SiteExecutor",
    f"{HERE}.ends.SiteEnd",
)
"""Classes that every job of ours names, whatever it computes."""


def site_resources(classes: tuple[str, ...]) -> dict[str, Any]:
    """A site's own settings: nobody else can change them."""
    return {
        "format_version": 2,
        "class_list_enforcement_mode": "enforce",
        "class_allow_list": [*PLUMBING, *classes],
        "allow_log_streaming": False,
        "client": {"retry_timeout": 30, "compression": "None"},
        "components": [
            _component(
                "resource_manager",
                "nvflare.app_common.resource_managers.gpu_resource_manager"
                ".GPUResourceManager",
                num_of_gpus=0,
                mem_per_gpu_in_GiB=0,
            ),
            _component(
                "resource_consumer",
                "nvflare.app_common.resource_consumers.gpu_resource_consumer"
                ".GPUResourceConsumer",
            ),
            _component("process_launcher", f"{HERE}.components.SiteLauncher"),
            _component("clean_stop", f"{HERE}.components.CleanStop"),
        ],
    }


def server_resources(
    deployment: Deployment, classes: tuple[str, ...]
) -> dict[str, Any]:
    """The server's settings; every path lies in the kit's own folder."""
    return {
        "format_version": 2,
        "class_list_enforcement_mode": "enforce",
        "class_allow_list": [*PLUMBING, *classes],
        "servers": [
            {
                "admin_storage": f"{STATE}/transfer",
                # Certificates decide who may come, also those made later.
                "max_num_clients": _MOST_SITES,
                "heart_beat_timeout": deployment.silence_seconds,
                "download_job_url": "",
                "admin_timeout": 10.0,
                "check_engine_frequency": 0.5,
                "shutdown_period": 1.0,
            }
        ],
        "snapshot_persistor": {
            "path": "nvflare.app_common.state_persistors.storage_state_persistor"
            ".StorageStatePersistor",
            "args": {
                "uri_root": "/",
                "storage": {
                    "path": f"{HERE}.components.KitStorage",
                    "args": {"folder": f"{STATE}/snapshots"},
                },
            },
        },
        "components": [
            _component(
                "job_scheduler",
                "nvflare.app_common.job_schedulers.job_scheduler.DefaultJobScheduler",
                max_jobs=1,
                min_schedule_interval=1.0,
                max_schedule_interval=10.0,
            ),
            _component(
                "job_manager",
                "nvflare.apis.impl.job_def_manager.SimpleJobDefManager",
                uri_root="/",
                job_store_id="job_store",
            ),
            _component(
                "job_store", f"{HERE}.components.KitStorage", folder=f"{STATE}/jobs"
            ),
            _component("process_launcher", f"{HERE}.components.ServerLauncher"),
            _component("abandoned_jobs", f"{HERE}.components.AbandonedJobs"),
            _component("clean_stop", f"{HERE}.components.CleanStop"),
        ],
    }


def authorization() -> dict[str, Any]:
    """Rights: the administrator runs jobs of installed classes and nothing else.

    No code may come with a job (``byoc``), no shell command runs anywhere, no site
    is stopped or made to log more from afar, and nobody else has any right.
    """
    allowed = ("submit_job", "manage_job", "download_job", "view")
    refused = ["byoc", "shell_commands", "operate", "clone_job"]
    refused.append("server-predeployed-flwr")
    rights = dict.fromkeys(allowed, "any") | dict.fromkeys(refused, "none")
    return {"format_version": "1.0", "permissions": {"project_admin": rights}}


def log_config() -> dict[str, Any]:
    """One log file of at most 50 MB; a call leaves no line there.

    NVFlare would log two lines for every call, and with DEBUG headers and sizes.
    """
    plain = "%(asctime)s - %(name)s - %(levelname)s - %(fl_ctx)s - %(message)s"
    quiet = ("nvflare.collab", "nvflare.fuel.f3", "nvflare.fuel.utils.fobs")
    return {
        "version": 1,
        "disable_existing_loggers": False,
        "formatters": {
            "plain": {"()": "nvflare.fuel.utils.log_utils.BaseFormatter", "fmt": plain}
        },
        "handlers": {
            "console": {
                "class": "logging.StreamHandler",
                "level": "INFO",
                "formatter": "plain",
                "stream": "ext://sys.stdout",
            },
            "file": {
                "class": "logging.handlers.RotatingFileHandler",
                "level": "INFO",
                "formatter": "plain",
                "filename": "log.txt",
                "mode": "a",
                "maxBytes": 10_000_000,
                "backupCount": 4,
            },
        },
        "loggers": {
            "root": {"level": "INFO", "handlers": ["console", "file"]},
            **{name: {"level": "WARNING"} for name in quiet},
        },
    }


def comm_config() -> dict[str, Any]:
    """How bytes travel: no connections besides that to the server."""
    return {"allow_adhoc_conns": False, "backbone_conn_gen": 2}


def _component(name: str, path: str, **args: object) -> dict[str, Any]:
    return {"id": name, "path": path, "args": args}
