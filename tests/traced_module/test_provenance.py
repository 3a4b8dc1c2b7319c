"""Where an expression comes from, and what keeps it: passes, rules, flattening, attaching, lowering, files, export."""

import importlib.util
import inspect
from typing import Any

import numpy as np
import pytest

import megengine as mge
import megengine.functional as F
import megengine.module as M
from megengine import traced_module as tm
from megengine.convert import onnx
from megengine.core.errors import FileFormatError
from megengine.tensor import Parameter, tensor
from megengine.traced_module.editing.expressions import set_outputs
from megengine.traced_module.ir.provenance import from_plain, marked, module_path, provenance, to_plain
from megengine.traced_module.passes import Pass, PassManager
from megengine.traced_module.passes.rewriting import Rule
from megengine.traced_module.patterns import any_, call
from megengine.traced_module.source import save_source


class Inner(M.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.norm = M.Conv2d(3, 3, 3, padding=1), M.BatchNorm2d(3)
        self.scale = Parameter(np.ones((1, 3, 1, 1), np.float32))

    def forward(self, x):
        y = F.relu(self.norm(self.conv(x)))
        return F.relu(F.relu(y * self.scale))


class Outer(M.Module):
    def __init__(self):
        super().__init__()
        self.first, self.table = Inner(), tensor(np.ones(3, np.float32))

    def forward(self, x):
        y = self.first(x) + F.exp(self.table).reshape(1, 3, 1, 1)
        return F.sigmoid(y) + F.sigmoid(y)


x = tensor(np.random.default_rng(0).standard_normal((1, 3, 6, 6)).astype(np.float32))
MODEL = tm.trace_module(Outer().eval(), x)


def line_of(kind: type, text: str) -> str:
    """file:line of a line of a class's source."""
    lines, first = inspect.getsourcelines(kind)
    return f"test_provenance.py:{first + next(i for i, line in enumerate(lines) if text in line)}"


RELU, RELUS = line_of(Inner, "self.norm(self.conv"), line_of(Inner, "F.relu(F.relu")
SUM, SIGMOID = line_of(Outer, "self.first(x) +"), line_of(Outer, "F.sigmoid(y) +")


def origins(model: tm.TracedModule) -> dict[str, tuple[str, str, tuple[str, ...]]]:
    """Name of a call -> module path, source line, passes."""
    found = {}
    for graph in model.graphs:
        for expr in graph.exprs():
            if expr.kind not in ("Input", "GetAttr"):
                found[expr.name] = (module_path(expr), *provenance(expr)[1:])
    return found


OF_THE_TRACE = {"conv_out": ("first.conv", RELU, ()), "relu_out": ("first", RELU, ()), "mul_out": ("first", RELUS, ())}


def test_the_trace_knows_module_and_line():
    found = origins(MODEL)
    assert {name: found[name] for name in OF_THE_TRACE} == OF_THE_TRACE
    assert found["add_out"] == ("", SUM, ())


def fused() -> tm.TracedModule:
    return tm.optimize(MODEL, passes=["FuseConvBn", "EliminateCommon"])


FORMS = {"traced": lambda: MODEL, "flat": MODEL.flatten, "fused": fused, "flat and fused": lambda: fused().flatten()}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("suffix", ["", ".mgt", ".tm"])
def test_what_is_traced_again_keeps_its_lines(form, suffix, tmp_path):
    """A graph that is run for a trace is no line of the user's: those it came from are told."""
    made = FORMS[form]()
    if suffix:
        mge.save(made, tmp_path / f"net{suffix}")
        made = mge.load(tmp_path / f"net{suffix}")
    again = tm.trace_module(made, x)
    assert list(origins(again).values()) == list(origins(made).values())
    assert list(origins(again.flatten()).values()) == list(origins(made.flatten()).values())


def test_traced_again_inside_of_another_module():
    class Around(M.Module):
        def __init__(self, inner):
            super().__init__()
            self.inner = inner
            inner.register_forward_hook(lambda module, inputs, output: F.tanh(output))

        def forward(self, x):
            return -self.inner(x)

    found = origins(tm.trace_module(Around(MODEL.clone()), x))
    assert found["add_out"] == ("inner", SUM, ()) and found["mul_out"] == ("inner.first", RELUS, ())
    assert found["neg_out"] == ("", line_of(Around, "-self.inner"), ())
    assert found["tanh_out"] == ("inner", line_of(Around, "F.tanh(output)"), ())


def test_generated_python_has_lines_of_its_own(tmp_path):
    path = tmp_path / "generated_net.py"
    save_source(MODEL, path)
    spec = importlib.util.spec_from_file_location("generated_net", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    again = tm.trace_module(module.load(), x)
    lines = path.read_text().splitlines()
    for name, (at, source, passes) in origins(again).items():
        file, _, number = source.partition(":")
        assert file == "generated_net.py" and not passes and at == origins(MODEL)[name][0]
        assert f"{name} = " in lines[int(number) - 1] or "return" in lines[int(number) - 1]
    assert origins(again).keys() == origins(MODEL).keys()


def test_flattening_keeps_module_and_line():
    found = origins(MODEL.flatten())
    for name, wanted in OF_THE_TRACE.items():
        assert found[f"first_{name}"] == wanted
    assert found["add_out"] == ("", SUM, ())
    assert origins(MODEL.flatten().flatten()) == found


def fused() -> tm.TracedModule:
    return tm.optimize(MODEL.flatten(), passes=["FuseConvBn", "FoldConstants", "EliminateCommon"])


OF_THE_PASSES = {
    "first_conv_out": ("first.conv", RELU, ("FuseConvBn",)),
    "first_relu_out": ("first", RELU, ()),
    "reshape_out": ("", SUM, ("FoldConstants",)),
    "sigmoid_out": ("", SIGMOID, ("EliminateCommon",)),
}


def test_passes_keep_it_and_are_noted_at_what_they_change():
    model = fused()
    found = origins(model)
    assert {name: found[name] for name in OF_THE_PASSES} == OF_THE_PASSES
    for _ in range(3):
        assert model.graph.undo()
    assert origins(model) == origins(MODEL.flatten())


@pytest.mark.parametrize("suffix", [".mgt", ".tm"])
def test_files_keep_it(suffix, tmp_path):
    for model in (fused(), MODEL):
        mge.save(model, tmp_path / f"net{suffix}")
        again = mge.load(tmp_path / f"net{suffix}")
        assert origins(again) == origins(model)
        mge.save(again, tmp_path / f"again{suffix}")
        assert origins(mge.load(tmp_path / f"again{suffix}")) == origins(model)


def test_lowering_and_its_files_and_onnx_keep_it(tmp_path):
    ops = tm.lower(fused())
    wanted = {
        "first_conv_conv2d_out": ("first.conv", RELU, ("FuseConvBn",)),
        "first_relu_out": ("first", RELU, ()),
        "first_relu_out_2": ("first", RELUS, ()),
        "sigmoid_out": ("", SIGMOID, ("EliminateCommon",)),
    }
    tm.save(ops, tmp_path / "ops.mgt")
    onnx.export(ops, tmp_path / "ops.onnx")
    for model in (ops, tm.load(tmp_path / "ops.mgt"), onnx.load(tmp_path / "ops.onnx")):
        found = origins(model)
        assert {name: found[name] for name in wanted} == wanted


def test_a_lowered_part_counts_paths_from_itself():
    part = MODEL.graph.get_function_by_type(F.relu)[0].top_graph
    found = origins(tm.lower(part))
    assert found["relu_out"] == ("", RELU, ()) and found["conv_conv2d_out"] == ("conv", RELU, ())


def test_what_is_attached_gets_the_path_at_which_it_stands():
    model = MODEL.clone()
    graph = model.graph
    with graph.insert_exprs():
        graph.inputs[0].head = MODEL.flatten()
        graph.replace_node({graph.outputs[0]: graph.inputs[0].head(graph.outputs[0])})
    inner = graph.get_node_by_name("first_relu_out").as_unique()
    assert module_path(inner.expr) == "head.first" and inner.meta["source"] == RELU
    assert origins(model.flatten())["head_first_relu_out"] == ("head.first", RELU, ())


a = any_()
ONCE = Rule("once", call(F.relu, call(F.relu, a)), lambda m: F.minimum(F.relu(m[a]), 6))
GONE = Rule("gone", call(F.relu, a), lambda m: m[a])


def test_all_that_a_rule_builds_comes_from_what_it_replaces():
    found = origins(tm.optimize(MODEL, passes=Pass.of_rules("Clipped", ONCE)))
    made = ("first", RELUS, ("once", "Clipped"))
    assert found["minimum_out"] == found["relu_out_3"] == made
    assert found["mul_out"] == OF_THE_TRACE["mul_out"]


def test_a_value_that_takes_the_place_of_another_keeps_its_own():
    found = origins(tm.optimize(MODEL, passes=Pass.of_rules("Gone", GONE)))
    assert found["norm_out"] == ("first.norm", RELU, ()) and found["mul_out"] == OF_THE_TRACE["mul_out"]


def test_what_a_pass_of_the_users_inserts_is_noted():
    def run(graph):
        with graph.insert_exprs():
            graph.replace_node({graph.outputs[0]: F.abs(graph.outputs[0])})
        return True

    ops = tm.lower(MODEL)

    def on_ops(graph):
        set_outputs(graph, [graph.apply("abs", graph.outputs[0])])
        return True

    assert origins(tm.optimize(MODEL, passes=Pass("Mine", run)))["abs_out"][2] == ("Mine",)
    PassManager([Pass("MyOp", on_ops)]).run(ops.graph)
    assert origins(ops)["abs_out"][2] == ("MyOp",)


def test_marks_are_not_doubled_and_plain_lists_are_read_back():
    meta = marked({"module": "a", "source": "b.py:1"}, "P", "P", "Q")
    assert meta["passes"] == ["P", "Q"] and from_plain(to_plain(meta)) == meta
    assert to_plain({}) == [] and from_plain(["a", ""]) == {"module": "a", "source": ""}
    wrong: Any
    for wrong in ("ab", ["a"], ["a", 1], 3):
        with pytest.raises(FileFormatError, match="the provenance of an expression is"):
            from_plain(wrong)
