import importlib
import json

import numpy as np
import pytest
from quant_nets import Builder, concat_net, residual_net, transposed_net

from megengine.core.errors import OptionError
from megengine.dispatch import get_op, reference_runner
from megengine.kernels.kernel import EagerKernel
from megengine.kernels.registry import family
from megengine.quantization import QuantConfig, quantize_model
from megengine.quantization.checks.verify import compare, specification, verify


def quantized(net, **settings):
    b, graph = net()
    return b, quantize_model(graph, b.data(), QuantConfig(**settings))


@pytest.mark.parametrize("profile", ["x86", "x86-symmetric", "onnx-qlinear"])
@pytest.mark.parametrize("net", [residual_net, concat_net, transposed_net])
def test_specification_eager_run_and_plans_agree(net, profile):
    b, model = quantized(net, profile=profile)
    seen = []
    result = verify(model, b.data(3, seed=5), progress=lambda *a: seen.append(a))
    assert result.exact, str(result)
    assert [r.run for r in result.runs] == ["eager", "plan, 1 thread", "plan, 2 threads"]
    assert len(result.float_steps) > 0
    assert result.float_largest <= 1
    assert seen[-1] == ("verify", 3, None)
    assert "equal" in str(result)
    json.dumps(result.to_json(), allow_nan=False)


def one_step_error(op, where):
    """An eager kernel of `op` that is one step too high in one value of the problem `where` selects."""

    def run(problem, *arrays):
        out = np.array(reference_runner(get_op(op), problem, True)(*arrays))
        flat = out.reshape(-1)
        at = int(np.argmin(flat))
        flat[at] += 1
        return out

    return family(op).planted(EagerKernel("planted", run, lambda p: None if where(p) else "not the planted problem"))


@pytest.mark.parametrize(("op", "name"), [("qconv2d", "sum"), ("qmean", "pool")])
def test_planted_error_is_found_and_named(op, name):
    b, model = quantized(residual_net)
    target = next(n for n in model.integer_graph.nodes() if n.name.startswith(name) and getattr(n.expr, "op", "") == op)
    shape, dtype = target.shape, target.dtype
    with one_step_error(op, lambda p: p.outputs[0].shape == shape and p.outputs[0].dtype == dtype):
        result = verify(model, b.data(2, seed=5), threads=(1,))
    eager = result.runs[0]
    assert not result.exact
    assert (eager.run, eager.node, eager.op) == ("eager", target.name, op)
    assert eager.module.startswith("net.")
    assert eager.steps >= 1
    assert target.name in str(result)
    assert verify(model, b.data(1), threads=(1,)).exact


def test_error_in_a_plan_is_found_and_named(monkeypatch):
    b, model = quantized(residual_net)
    module = importlib.import_module("megengine.quantization.checks.verify")

    class WrongPlan:
        def __init__(self, graph):
            self.graph = graph

        def __call__(self, *inputs):
            values = specification(self.graph, inputs)
            wrong = {k: v.copy() for k, v in values.items()}
            for name in wrong:
                if name.startswith(("head_act_int", "pool_int", "logits_int")) and wrong[name].ndim > 1:
                    wrong[name].reshape(-1)[0] += 1
            return [wrong[n.name] for n in self.graph.outputs]

    monkeypatch.setattr(module, "compile_plan", lambda graph, threads: WrongPlan(graph))
    result = verify(model, b.data(1, seed=5), threads=(1,))
    plan = result.runs[1]
    assert result.runs[0].values == 0
    assert plan.values == 1
    assert plan.node == "head_act_int"


def test_no_inputs():
    _, model = quantized(residual_net)
    with pytest.raises(OptionError, match="verify: no inputs"):
        verify(model, [])


def test_specification_runs_no_kernel():
    b, model = quantized(residual_net)
    with one_step_error("qconv2d", lambda p: True):
        spoiled = specification(model.integer_graph, b.data(1))
    clean = specification(model.integer_graph, b.data(1))
    assert all(np.array_equal(spoiled[k], clean[k]) for k in clean)


def test_an_error_in_a_float_op_between_integers_is_named_there():
    b = Builder()
    x = b.relu(b.conv(b.x, 4, label="first"), label="act")
    x = b.op("asinh", x, label="middle")
    graph = b.done(b.conv(b.op("log_softmax", x, axis=1, label="behind"), 4, label="last"))
    model = quantize_model(graph, b.data())
    with one_step_error("asinh", lambda p: True):
        result = verify(model, b.data(1, seed=5), threads=(1,))
    assert [(run.node, run.op) for run in result.runs] == [("middle", "asinh"), ("", "")]  # plans have another kernel


def test_nan_equals_nan_and_no_number():
    """0 / 0 where integers are 0 is NaN in every run."""
    b = Builder()
    x = b.op("asinh", b.relu(b.conv(b.x, 4, label="first"), label="act"), label="middle")
    graph = quantize_model(b.done(b.conv(x, 4, label="last")), b.data()).integer_graph
    values = specification(graph, b.data(1))
    name = "middle"
    broken = {**values, name: np.where(values[name] > 0, np.float32(np.nan), values[name])}
    assert compare(graph, "plan", 0, broken, {k: v.copy() for k, v in broken.items()}).values == 0
    found = compare(graph, "plan", 0, values, broken)
    assert (found.node, found.steps, found.values) == (name, float("inf"), np.count_nonzero(values[name] > 0))
