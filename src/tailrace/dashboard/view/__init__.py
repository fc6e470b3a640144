"""What the page shows, judged and put together from what the sources observed: pure functions and plain values.

Nothing here polls, waits or serves: the same observations always give the same view.
"""
