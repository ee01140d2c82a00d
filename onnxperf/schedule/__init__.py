"""When everything happens: a host thread that launches kernels, and the streams and copy engines that run them."""

from onnxperf.schedule.core import Host, Timeline, added_up, hosts, laid_out, schedule
from onnxperf.schedule.tasks import COMPUTE, COPY, STALLS, HostThread, Task, run_tasks

__all__ = [
    "COMPUTE", "COPY", "STALLS", "Host", "HostThread", "Task", "Timeline", "added_up", "hosts", "laid_out", "run_tasks",
    "schedule",
]  # fmt: skip
