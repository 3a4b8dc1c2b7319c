"""Plans: compiled networks."""

from megengine.plan.compiler import Plan, StepInfo
from megengine.plan.compiling import CutPlan, OpenPlan, compile, load

__all__ = ["CutPlan", "OpenPlan", "Plan", "StepInfo", "compile", "load"]
