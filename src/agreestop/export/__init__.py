"""An ensemble and its rules for other places: as C for a device, or as a page in which one
watches it decide.

ensemble = agreestop.ensembles.load("members.safetensors", engine="event-driven-int8")
rule = agreestop.load_rule("int8.rule")
made = to_c(rule, ensemble, "firmware", inputs=test_inputs)
page = to_page([rule], ensemble, "demo.html", test_inputs)

The rule must be calibrated on scores of the same engine. `to_c` writes C sources, a Makefile, and
inputs to check them with; `watch_to_c` does so for a spotter and a rule on a stream without an end,
and `spotter_to_c` for a spotter of scores of your own. `to_page` writes one HTML file that loads
nothing else; it takes one rule for each target.
"""

from agreestop.common.errors import needs

with needs("agreestop.export", extras="engines"):  # they read the event-driven engine
    from .c_files import CExport, to_c
    from .page import PageExport, to_page
    from .watch_files import spotter_to_c, watch_to_c

__all__ = ["CExport", "PageExport", "spotter_to_c", "to_c", "to_page", "watch_to_c"]
