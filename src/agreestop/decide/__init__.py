"""The decision layer: it needs only numpy, and works with any model's log-confidences."""
