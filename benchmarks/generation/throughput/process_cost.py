"""CPU seconds and resident memory of processes, this one or a server's."""

import time
from pathlib import Path

import psutil

from hub.process import peak_rss_mb


class ProcessCost:
    """Meters of some processes together; none named: this one."""

    def __init__(self, pids: tuple[int, ...] = ()):
        self._own, self._processes = not pids, [psutil.Process(pid) for pid in pids or (None,)]

    def cpu_s(self) -> float:
        """CPU seconds so far; other processes' in steps of the system's clock, 10 ms."""
        if self._own:
            return time.process_time()
        times = [process.cpu_times() for process in self._processes]
        return sum(one.user + one.system for one in times)

    def rss_mb(self) -> float:
        """Resident memory now, in MiB."""
        return round(sum(process.memory_info().rss for process in self._processes) / 2**20, 1)

    def forget_peak(self) -> bool:
        """Let the peak begin anew at what is resident now; False where the system cannot (it is Linux's)."""
        try:
            for process in self._processes:
                Path(f"/proc/{process.pid}/clear_refs").write_text("5", encoding="ascii")
        except OSError:
            return False
        return True

    def peak_mb(self) -> float:
        """Peak resident memory in MiB since ``forget_peak`` (since the process began, where that is not possible)."""
        peaks = [_high_water(process) for process in self._processes]
        return peak_rss_mb() if self._own and None in peaks else round(sum(peak or 0 for peak in peaks) / 2**20, 1)


def _high_water(process: psutil.Process) -> int | None:
    """Bytes of a process's peak; None where /proc does not tell it."""
    status = Path(f"/proc/{process.pid}/status")
    lines = status.read_text(encoding="ascii", errors="replace").splitlines() if status.is_file() else []
    told = [int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM:")]
    return told[0] if told else None
