"""Tables that are distributed over the nodes of a Citus cluster."""
