"""Open axes: networks with a fixed batch made to take any, and whether the first axis of a network is the batch."""

from megengine.traced_module.opening.batch import lowered as lowered
from megengine.traced_module.opening.batch import open_batch as open_batch
from megengine.traced_module.opening.rows import rows_of as rows_of
from megengine.traced_module.opening.rows import takes_rows as takes_rows
