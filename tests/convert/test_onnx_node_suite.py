"""Each case of ONNX's node suite is computed right or refused with the reason; what is read is written again."""

from collections import Counter

import node_suite
import numpy as np
import pytest

from megengine.convert.onnx import load_graph
from megengine.convert.onnx.exporter import to_model
from megengine.core.errors import FileFormatError, GraphError
from megengine.traced_module import interpret
from tests.helpers.onnx_runtime import session_of

LEAST = {"array": 0.97, "expanded": 0.98, "other": 0, "sequence": 0.96}  # share of each kind of case that passes
OPERATORS = sorted({node_suite.operator_of(name) for name in node_suite.cases()})


@pytest.mark.parametrize("operator", OPERATORS)
def test_no_case_of_the_operator_is_wrong_or_crashes(operator):
    found = [node_suite.outcome(name) for name in node_suite.cases() if node_suite.operator_of(name) == operator]
    bad = [one for one in found if one.state not in (node_suite.PASSED, node_suite.REFUSED)]
    assert not bad, "\n".join(f"{one.state} {one.name}: {one.reason}" for one in bad)


@pytest.mark.slow
def test_most_cases_pass():
    found = list(node_suite.outcomes([]))
    for kind, least in LEAST.items():
        states = Counter(one.state for one in found if one.kind == kind)
        assert states[node_suite.PASSED] >= least * states.total(), (kind, states)


def imported(name):
    """The graph of a case and its inputs, as the suite runs it; None where that is refused."""
    case = node_suite.cases()[name]
    for model, inputs in node_suite.forms(case):
        try:
            return load_graph(model.SerializeToString(), input_values=node_suite.lists_of(case)), inputs
        except FileFormatError:
            continue
    return None


def near(found, wanted):
    for a, b in zip(found, wanted, strict=True):
        assert (a.shape, a.dtype) == (b.shape, b.dtype)
        np.testing.assert_allclose(a.astype(np.float64), b.astype(np.float64), rtol=1e-3, atol=1e-4)


def values(graph, inputs):
    return [y._storage() for y in interpret(graph, inputs)]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("opset", [17, 23])
@pytest.mark.parametrize("operator", OPERATORS)
def test_what_is_read_is_written_and_read_again(operator, opset):
    """The exported model computes the same in ONNX Runtime and when it is read again, and stays as it is then."""
    pytest.importorskip("onnxruntime")
    for name in node_suite.cases():
        if node_suite.operator_of(name) != operator or "_expanded" in name or (found := imported(name)) is None:
            continue
        graph, inputs = found
        if not graph.inputs:  # lists are given while reading; a model without inputs is refused
            continue
        try:
            model = to_model(graph, opset=opset)
        except GraphError as error:  # dtypes and operators that the opset lacks
            assert "since opset" in str(error) or "refuses the model" in str(error), (name, error)
            continue
        again = load_graph(model.SerializeToString())
        wanted = values(graph, inputs)
        near(values(again, inputs), wanted)
        second = to_model(again, opset=opset)
        third = to_model(load_graph(second.SerializeToString()), opset=opset)
        assert [n.op_type for n in third.graph.node] == [n.op_type for n in second.graph.node], name
        try:
            session = session_of(model)
            arrays = {item.name: x._storage() for item, x in zip(session.get_inputs(), inputs, strict=True)}
            got = session.run(None, arrays)
        except Exception as error:  # dtypes that it lacks
            assert "NOT_IMPLEMENTED" in str(error) or "Numpy" in str(error), (name, error)
            continue
        near(got, wanted)
