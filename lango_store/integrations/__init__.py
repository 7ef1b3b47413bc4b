"""Other frameworks' own interfaces on our store, one module a framework, each needing its extra."""
