"""`--input-shape` with names: axes stay open, and those of one name are equal."""

import json

from onnx import helper, save

from tests.helpers.command import call

MODULE = "import megengine.module as M\ndef build(): return M.ReLU()\n"


def test_axes_of_one_name_are_equal_and_open(tmp_path):
    inputs = [helper.make_tensor_value_info(name, 1, [None, None, 4]) for name in ("x", "y")]
    outputs = [helper.make_tensor_value_info("sum", 1, None)]
    graph = helper.make_graph([helper.make_node("Add", ["x", "y"], ["sum"])], "net", inputs, outputs)
    file = tmp_path / "net.onnx"
    save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), file)
    shapes = ("--input-shape", "x=batch,steps,4", "--input-shape", "y=batch,steps,4", "--input-shape", "batch=3")
    told = json.loads(call("inspect", file, *shapes, "--json"))
    assert [one["shape"] for one in told["inputs"]] == [["batch", "steps", 4], ["batch", "steps", 4]]
    assert "is no shape" in call("inspect", file, "--input-shape", "x=batch", code=2)


def test_a_function_has_no_names_for_axes(tmp_path, monkeypatch):
    (tmp_path / "net.py").write_text(MODULE)
    monkeypatch.chdir(tmp_path)
    assert "names the axis 'batch'" in call("inspect", "net.py:build", "--input-shape", "batch,3", code=1)
