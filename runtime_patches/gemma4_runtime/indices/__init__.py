"""What attention kernels are about to follow: the index arrays of a metadata build, and where they lead."""
