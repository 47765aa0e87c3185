"""The event-camera simulator."""
