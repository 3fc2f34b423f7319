"""window_lists: the slots that sliding layers read, per request and in the sliding layers' own pool, in one launch."""
