"""Plans: compiled networks."""

from megengine.plan.building import StepInfo
from megengine.plan.compiler import Plan
from megengine.plan.compiling import OpenPlan, SegmentedPlan, compile, load
from megengine.plan.gpu_plan import GpuPlan

__all__ = ["GpuPlan", "SegmentedPlan", "OpenPlan", "Plan", "StepInfo", "compile", "load"]
