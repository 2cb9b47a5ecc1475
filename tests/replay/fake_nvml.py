"""NVML without a driver: what the meters call of nvidia-ml-py, on counters that a test moves."""

from types import SimpleNamespace
from typing import Any

HANDLE = "gpu 0"


class FakeNvml:
    """Stands in for the pynvml module; nothing moves but what a test moves."""

    NVML_GPM_METRICS_GET_VERSION = 1
    NVML_GPM_METRIC_GRAPHICS_UTIL = 1
    NVML_GPM_METRIC_SM_UTIL = 2
    NVML_GPM_METRIC_SM_OCCUPANCY = 3
    NVML_GPM_METRIC_ANY_TENSOR_UTIL = 5
    NVML_GPM_METRIC_DRAM_BW_UTIL = 10

    class NVMLError(Exception):
        """What the library raises."""

    def __init__(self, **missing: bool) -> None:
        self.missing = missing  # by function: True where the GPU does not support it
        self.energy_mj = 5_000_000
        self.power_mw = 300_000
        self.mask = 0
        self.violation_ns = {0: 0, 1: 0}
        self.now_us = 1_000_000
        self.percent = {1: 99.0, 2: 80.0, 3: 40.0, 5: 55.0, 10: 30.0}
        self.freed = 0

    def _ask(self, name: str) -> None:
        if self.missing.get(name):
            raise self.NVMLError(f"{name} is not supported")

    def nvmlInit(self) -> None:  # noqa: N802
        self._ask("init")

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> str:  # noqa: N802
        self._ask("uuid")
        assert uuid.startswith("GPU-")
        return HANDLE

    def nvmlDeviceGetHandleByIndex(self, index: int) -> str:  # noqa: N802
        self._ask("index")
        return f"gpu {index}"

    def nvmlDeviceGetTotalEnergyConsumption(self, _: str) -> int:  # noqa: N802
        self._ask("energy")
        return self.energy_mj

    def nvmlDeviceGetPowerUsage(self, _: str) -> int:  # noqa: N802
        self._ask("power")
        return self.power_mw

    def nvmlDeviceGetViolationStatus(self, _: str, policy: int) -> Any:  # noqa: N802
        self._ask("violation")
        return SimpleNamespace(violationTime=self.violation_ns[policy], referenceTime=self.now_us)

    def nvmlDeviceGetCurrentClocksThrottleReasons(self, _: str) -> int:  # noqa: N802
        self._ask("reasons")
        return self.mask

    def nvmlGpmQueryDeviceSupport(self, _: str) -> Any:  # noqa: N802
        self._ask("gpm")
        return SimpleNamespace(isSupportedDevice=0 if self.missing.get("hopper") else 1)

    def nvmlGpmSampleAlloc(self) -> Any:  # noqa: N802
        return SimpleNamespace(taken=0)

    def nvmlGpmSampleFree(self, _: Any) -> None:  # noqa: N802
        self.freed += 1

    def nvmlGpmSampleGet(self, _: str, sample: Any) -> Any:  # noqa: N802
        self._ask("sample")
        sample.taken += 1
        return sample

    def c_nvmlGpmMetricsGet_t(self) -> Any:  # noqa: N802
        metrics = [SimpleNamespace(metricId=0, nvmlReturn=0, value=0.0) for _ in range(210)]
        return SimpleNamespace(version=0, numMetrics=0, sample1=None, sample2=None, metrics=metrics)

    def nvmlGpmMetricsGet(self, question: Any) -> Any:  # noqa: N802
        self._ask("metrics")
        assert question.version == self.NVML_GPM_METRICS_GET_VERSION
        assert question.sample1 is not question.sample2
        for metric in question.metrics[: question.numMetrics]:
            metric.nvmlReturn = 0 if metric.metricId in self.percent else 3
            metric.value = self.percent.get(metric.metricId, 0.0)
        return question
