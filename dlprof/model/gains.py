"""From which speedup on (old step time over new) a change counts; advice, trials and reports go by the same marks.

Standard library only: the command that starts the script imports this module.
"""

WORTH_TRYING = 1.05
"""A change of a setting is worth trying from here."""
SAME = 1.03
"""Below, a setting is as good as another. Source: the knee of the forecast curve."""
