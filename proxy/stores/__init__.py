"""Where tasks live. `base.py` is the seam; the others implement it.

Imports `proxy.tasks`; `routing` imports `stores.base` alone, `app.py` names the concrete classes.
"""
