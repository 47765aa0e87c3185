"""After calibration: alarms, a threshold that adapts, and tests of exchangeability."""
