"""small_m_linear: a matrix product of a few rows, as in a decode step, at the speed at which its weights are read."""
