"""From evidence to findings: dumps, guard manifests, ledgers and logs in; ranked causes out."""
