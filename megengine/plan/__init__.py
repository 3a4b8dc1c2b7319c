"""Plans: compiled networks."""

from megengine.plan.compiler import Plan, StepInfo
from megengine.plan.compiling import OpenPlan, compile, load

__all__ = ["OpenPlan", "Plan", "StepInfo", "compile", "load"]
