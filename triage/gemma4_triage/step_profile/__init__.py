"""Where the GPU time of a decode step goes, from a torch profiler trace. Needs neither torch nor a GPU."""
