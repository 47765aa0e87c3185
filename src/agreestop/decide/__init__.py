"""The decision layer: numpy alone, usable with any model's log-confidences."""
