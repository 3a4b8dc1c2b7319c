"""Plans: compiled networks."""

from megengine.plan.compiler import Plan, StepInfo, compile

__all__ = ["Plan", "StepInfo", "compile"]
