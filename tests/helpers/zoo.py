"""The model zoo of the tests: networks of every kind in plain MegEngine style, narrow enough to run in milliseconds.

`ZOO` maps a name to a function that gives (module in evaluation mode, arguments of a call).
"""

import zoo_dense
import zoo_pictures
import zoo_sequences

ZOO = {**zoo_pictures.NETS, **zoo_dense.NETS, **zoo_sequences.NETS}
