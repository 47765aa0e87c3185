"""After calibration: alarms, and a threshold that adapts."""
