"""FROZEN_KV_MTP under spec v2: a draft worker, the worker that the scheduler drives, and what cannot be served."""
