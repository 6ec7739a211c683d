"""Features of a padded batch: for exported models, and for training with features computed on the device."""
