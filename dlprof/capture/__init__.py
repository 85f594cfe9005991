"""Everything that happens while the user's script runs. The only package that touches torch.

``supervisor`` runs outside the script; all other modules run inside it and in its workers, use the standard library
only, and never let an exception of their own out.
"""
