"""A plugin with one part of each kind that a training needs, so that core can be tested without asr.components."""
