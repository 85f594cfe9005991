"""Profile to diagnosis: steps, where their time went, why the loop waited, what bounds it."""
