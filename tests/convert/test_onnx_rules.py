"""An op has one rule for each direction of ONNX, and what its record states is what the standard states."""

import dataclasses

import onnx
import pytest

import megengine.convert.onnx
import megengine.functional  # noqa: F401
from megengine.convert.onnx.context import RULES, rule
from megengine.convert.onnx.operators import record_of
from megengine.convert.onnx.writing import WRITERS, writer
from megengine.dispatch import OnnxRule, OnnxWriter, no_onnx, registry

OPS = sorted(registry)
STATED = sorted(name for name, op in registry.items() if isinstance(op.onnx, OnnxRule))


@pytest.mark.parametrize("name", OPS)
def test_an_op_is_exported_by_its_record_or_by_a_writer(name):
    assert (name in WRITERS) == isinstance(registry[name].onnx, OnnxWriter)


@pytest.mark.parametrize("name", STATED)
def test_an_operator_is_imported_by_one_record_or_by_a_reader(name):
    stated = registry[name].onnx
    assert isinstance(stated, OnnxRule)
    assert (stated.op_type in RULES) == (not stated.read)
    if stated.read:
        assert record_of(stated.op_type) is registry[name]


@pytest.mark.parametrize("name", STATED)
def test_what_a_record_states_is_in_the_standard(name):
    stated = registry[name].onnx
    assert isinstance(stated, OnnxRule)
    known = onnx.defs.get_schema(stated.op_type).attributes
    for sample in registry[name].samples():
        assert stated.attributes.keys() == sample.attrs.keys() - {"device"}
        assert {*stated.attributes.values(), *stated.more([_Shaped(a) for a in sample.inputs])} <= known.keys()


class _Shaped:
    def __init__(self, array):
        self.shape = array.shape


@pytest.mark.parametrize("own", ["a rule", "a refusal"])
def test_a_writer_beside_a_rule_or_a_refusal_is_refused(monkeypatch, own):
    record = registry["relu"]
    if own == "a refusal":
        monkeypatch.setitem(registry, "relu", dataclasses.replace(record, onnx=no_onnx("a test")))
    with pytest.raises(AssertionError, match="relu has a writer, and its record"):
        writer("relu")(lambda w, expr: None)
    assert "relu" not in WRITERS


def test_a_second_writer_or_reader_is_refused():
    with pytest.raises(AssertionError, match="add has two writers"):
        writer("add")(lambda w, expr: None)
    with pytest.raises(AssertionError, match="Conv has two readers"):
        rule("Conv")(lambda call: call.input(0))
