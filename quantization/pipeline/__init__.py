"""The passes: fuse, annotate, observe, calibrate, freeze, materialize, fold, lower."""
