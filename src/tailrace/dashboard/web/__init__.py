"""The page and its JSON API, served to browsers: access, actions, server-sent events and the static files.

Whoever should not get in is refused here; what is shown comes from `view` alone.
"""
