"""Op classes of MegEngine without an implementation here: they can be made; applying one raises OptionError."""

from __future__ import annotations

from megengine.compat.opdef import choice, refused_op

_ENGINES = "models of other engines do not run here; convert the original model to ONNX and load that"
_ONE_PROCESS = "training runs in one process; sums and copies between processes have nothing to do"
_MODES = choice(
    "CollectiveComm.Mode",
    "REDUCE_SUM BROADCAST ALL_GATHER REDUCE_SCATTER_SUM ALL_REDUCE_SUM ALL_REDUCE_MAX ALL_REDUCE_MIN "
    "ALL_REDUCE_PROD GATHER SCATTER ALL_TO_ALL",
)

for _name, _engine in (("Atlas", "Ascend's runtime"), ("MagicMind", "MagicMind"), ("TensorRT", "TensorRT")):
    refused_op(f"{_name}Runtime", f"A model of {_engine}.", _ENGINES, buf="", buf_size=0)
_CAMBRICON = {"buf": "", "buf_size": 0, "symbol": "", "tensor_dim_mutable": False}
refused_op("CambriconRuntime", "A model of Cambricon's runtime.", _ENGINES, **_CAMBRICON)
_LIBRARY = {"output_shapes": (), "name": "", "data": "", "data_len": 0, "output_dtypes": None}
refused_op("ExternOpr", "An op of a library that was loaded.", _ENGINES, **_LIBRARY)
refused_op(
    "CollectiveComm",
    "A sum, a copy or the like between processes.",
    _ONE_PROCESS,
    **{"mode": _MODES, "key": "", "nr_devices": 0, "rank": 0, "is_root": False, "local_grad": False},
    **{"addr": "", "port": 0, "dtype": None, "backend": "", "comp_node": ""},
)
_PEER = {"key": "", "addr": "", "port": 0}
refused_op("RemoteSend", "A tensor sent to another process.", _ONE_PROCESS, **_PEER, rank_to=0, backend="")
_SENT = {"rank_from": 0, "cn": "", "shape": (), "dtype": None, "backend": ""}
refused_op("RemoteRecv", "A tensor received from another process.", _ONE_PROCESS, **_PEER, **_SENT)
refused_op(
    "Barrier",
    "Waits for a device.",
    "calls are synchronous, so there is nothing to wait for",
    comp_node="",
    nr_outputs=0,
)
