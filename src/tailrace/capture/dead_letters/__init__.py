"""Where events go that cannot be delivered, so that the stream can go on: a topic, a file, or nowhere by choice."""
