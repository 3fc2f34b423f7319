"""Readers of what else a dying server leaves beside dumps and logs; each bounded in memory and time."""
