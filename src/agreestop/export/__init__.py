"""An ensemble and its rule for other places: as C for a device.

ensemble = agreestop.ensembles.load("members.safetensors", engine="event-driven-int8")
rule = agreestop.load_rule("int8.rule")                      calibrated on scores of the same engine
made = to_c(rule, ensemble, "firmware", inputs=test_inputs)  C sources, a Makefile, and inputs to check them with
"""

from .c_files import CExport, to_c

__all__ = ["CExport", "to_c"]
