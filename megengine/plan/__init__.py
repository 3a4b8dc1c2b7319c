"""Plans: compiled networks."""

from megengine.plan.compile import Plan, StepInfo, compile

__all__ = ["Plan", "StepInfo", "compile"]
