"""Rules: findings to advice. One function and one row in ``RULES`` for each piece of advice."""
