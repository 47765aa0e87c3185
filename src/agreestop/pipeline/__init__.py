"""The main job: configuration, data, training, scores, measurements, report."""
