"""Names of MegEngine that are not here: why, and what to use instead."""

from __future__ import annotations

# beginning of a name -> why it is not here; the longest one counts
REASONS: dict[str, str] = {
    "megengine.autodiff.grad_manager.": "internal: attach() and the | of two managers make them",
    "megengine.device.": "memory of the processor is not pooled, so there is nothing to report or to configure",
    "megengine.device.get_cuda": "versions and properties of CUDA devices: ask CuPy (cupy.cuda.runtime)",
    "megengine.device.get_cudnn": "cuDNN is not used",
    "megengine.device.get_tensorrt": "TensorRT is not used",
    "megengine.functional.": "not written yet",
    "megengine.functional.debug_param.": "settings of MegEngine's own kernels, which do not exist here",
    "megengine.functional.distributed.": "not written yet",
    "megengine.functional.external.": "runs models compiled for other engines, which are not supported",
    "megengine.functional.inplace.": "internal: tensors are values, optimizers write to parameters themselves",
    "megengine.functional.tensor_cache.": "internal to MegEngine's kernels",
    "megengine.functional.utils.": "internal",
    "megengine.hub.": "hub loads local folders and asks for trust; clone a repository and pass its folder",
    "megengine.logger.": "there is one logger, Python's; set_log_level sets its level",
    "megengine.module.": "not written yet",
    "megengine.module.external.": "runs models compiled for other engines, which are not supported",
    "megengine.module.init.": "internal",
    "megengine.module.rnn.RNNBase.init_hidden": "RNN and LSTM take the size of the batch, and so does their base",
    "megengine.module.module.Module.replace_param": "deprecated since MegEngine 1.0; use load_state_dict",
    "megengine.module.qat.": "see the page on quantization",
    "megengine.module.quantized.": "see the page on quantization",
    "megengine.optim": "it is called megengine.optimizer",
    "megengine.optimizer.optimizer.Optimizer.bcast_param": "removed; distributed training sends parameters itself",
    "megengine.random.": "not written yet",
    "megengine.serialization.": "internal; load(file, map_location=...) says where tensors go",
    "megengine.check_misc": "there is no installation to check: what is missing says so when it is used",
    "megengine.utils.": "a helper of MegEngine's own tools; models and training do not use it",
}


def reason(name: str) -> str:
    """Why a full name is not here, by the longest beginning in the table; empty if the table does not know it."""
    best = max((p for p in REASONS if name.startswith(p)), key=len, default=None)
    return "" if best is None else REASONS[best]


def missing(module: str, name: str) -> AttributeError:
    """The error for a name that a module does not have; it says why if the name is MegEngine's."""
    known = "" if name.startswith("_") or module == "megengine.module" else reason(f"{module}.{name}")
    known = known or REASONS.get(f"{module}.{name}", "")
    return AttributeError(f"module {module!r} has no attribute {name!r}" + (f": {known}" if known else ""))
