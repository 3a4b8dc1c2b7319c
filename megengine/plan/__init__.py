"""Plans: compiled networks."""

from megengine.plan.compiler import Plan, StepInfo
from megengine.plan.compiling import OpenPlan, SegmentedPlan, compile, load

__all__ = ["SegmentedPlan", "OpenPlan", "Plan", "StepInfo", "compile", "load"]
