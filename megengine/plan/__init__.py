"""Plans: compiled networks."""

from megengine.plan.compiler import Plan, StepInfo, compile, load

__all__ = ["Plan", "StepInfo", "compile", "load"]
