"""Budgets: limits of what the turns of a scope may use, which all workers keep together.

A turn reserves a part of its budget in the transaction that begins it. A reservation counts as long as the turn has the
lease of its session, so the reservation of a process that died ends with the lease.
"""
