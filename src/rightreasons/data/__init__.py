"""Data sources: one file each. A source names its classes and loads the ones it is asked for.

Nothing is imported here: the processes that decode images start without torch.
"""
