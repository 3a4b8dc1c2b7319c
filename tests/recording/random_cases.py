"""Random numbers of MegEngine: `python random_cases.py OUT.npz` records quantiles, shapes and dtypes of its distributions.

`tests/random/test_distributions.py` compares ours with them.
"""

import sys

import numpy as np

COUNT = 20000
POINTS = np.linspace(0.02, 0.98, 49)  # where the distributions are compared

DRAWS = {  # name -> a call that draws COUNT numbers from the module megengine.random
    "uniform": lambda R: R.uniform(size=(COUNT,)),
    "uniform -1 3": lambda R: R.uniform(-1, 3, (COUNT,)),
    "normal": lambda R: R.normal(size=(COUNT,)),
    "normal 2 3": lambda R: R.normal(2.0, 3.0, (COUNT,)),
    "gamma 2": lambda R: R.gamma(2.0, size=(COUNT,)),
    "gamma 0.5 3": lambda R: R.gamma(0.5, 3.0, (COUNT,)),
    "beta 2 3": lambda R: R.beta(2.0, 3.0, (COUNT,)),
    "beta 0.5 0.5": lambda R: R.beta(0.5, 0.5, (COUNT,)),
    "poisson 4": lambda R: R.poisson(4.0, (COUNT,)),
    "poisson 0.3": lambda R: R.poisson(0.3, (COUNT,)),
    "permutation": lambda R: R.permutation(COUNT),
}
FILLS = {  # name -> a call that fills a tensor of COUNT elements, with the module megengine.module.init
    "uniform_": lambda M, t: M.uniform_(t, -2.0, 1.0),
    "normal_": lambda M, t: M.normal_(t, 1.0, 0.5),
    "xavier_uniform_": lambda M, t: M.xavier_uniform_(t),
    "xavier_uniform_ 2": lambda M, t: M.xavier_uniform_(t, 2.0),
    "xavier_normal_": lambda M, t: M.xavier_normal_(t, 0.5),
    "msra_uniform_": lambda M, t: M.msra_uniform_(t),
    "msra_uniform_ options": lambda M, t: M.msra_uniform_(t, 0.3, "fan_out", "leaky_relu"),
    "msra_normal_": lambda M, t: M.msra_normal_(t),
    "msra_normal_ relu": lambda M, t: M.msra_normal_(t, 0, "fan_out", "relu"),
}
SHAPES = {  # name -> a call whose result's shape and dtype are compared
    "uniform()": lambda R, T: R.uniform(),
    "normal()": lambda R, T: R.normal(),
    "uniform (2, 0)": lambda R, T: R.uniform(size=(2, 0)),
    "normal (3, 1)": lambda R, T: R.normal(size=(3, 1)),
    "gamma of tensors": lambda R, T: R.gamma(T([[2.0, 3.0]]), T([[1.0], [2.0]])),
    "gamma of a tensor and size": lambda R, T: R.gamma(T([2.0, 3.0]), size=(4, 2)),
    "beta of tensors": lambda R, T: R.beta(T([2.0, 3.0]), T([1.0, 4.0]), (5,)),
    "poisson of a tensor": lambda R, T: R.poisson(T([[1.0, 2.0]]), (3,)),
    "gamma()": lambda R, T: R.gamma(2.0),
    "beta()": lambda R, T: R.beta(2.0, 3.0),
    "poisson()": lambda R, T: R.poisson(2.0),
    "permutation 5": lambda R, T: R.permutation(5),
    "permutation 5 float32": lambda R, T: R.permutation(5, dtype="float32"),
    "permutation of a tensor": lambda R, T: R.permutation(T([[1.0, 2.0], [3.0, 4.0]])),
}


def answers(engine, random, init):
    """Name -> array of everything that is compared."""
    random.seed(7)
    found = {}
    for name, draw in DRAWS.items():
        found[name] = np.quantile(draw(random).numpy().astype(np.float64), POINTS)
    for name, fill in FILLS.items():
        t = engine.tensor(np.zeros((50, 16, 5, 5), np.float32))
        fill(init, t)
        found[name] = np.quantile(t.numpy().astype(np.float64), POINTS)
    for name, draw in SHAPES.items():
        result = draw(random, lambda values: engine.tensor(np.float32(values)))
        found[name] = np.array(result.shape, np.int64)
        found[name + " dtype"] = np.array(np.dtype(result.dtype).name)
    return found


if __name__ == "__main__":
    import megengine
    import megengine.module
    import megengine.random
    import packed

    packed.save(sys.argv[1], answers(megengine, megengine.random, megengine.module.init))
