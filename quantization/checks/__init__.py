"""Checks: what a network computes in, how far integers are from float, and whether all ways to run it agree."""

from megengine.quantization.checks.analysis import Agreement, Analysis, EdgeReport, analyze, finite
from megengine.quantization.checks.audit import Risk, audit
from megengine.quantization.checks.findings import CAUSES, Finding, diagnose
from megengine.quantization.checks.forms import integer_form, require_float, require_float_modules, require_integers
from megengine.quantization.checks.pairs import Comparison, ValuePair, compare_values
from megengine.quantization.checks.sensitivity import LayerReport, Noise, Sensitivity, sensitivity
from megengine.quantization.checks.switching import BOUNDED, Sample, Switch, Switchboard
from megengine.quantization.checks.verify import VerifyResult, verify
