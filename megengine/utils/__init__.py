"""Tools beside training: statistics of modules, folding of batch normalisation, conversion of tensors."""
