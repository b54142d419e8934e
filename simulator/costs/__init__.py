"""Cost models: how long an iteration of a given shape takes. One file each."""

BUILTIN = {
    "roofline": "simulator.costs.roofline:Roofline",
    "linear": "simulator.costs.linear:Linear",
    "table": "simulator.costs.table:Table",
    "constant": "simulator.costs.constant:Constant",
}
