"""Event streams: what they are, where they come from, and a simulator of the camera that makes them."""
