"""Features of a padded batch: for exported programs, and for training where the net is."""
