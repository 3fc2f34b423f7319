"""One report as records: what a run, dumps and logs said, read once. HTML, Markdown, JSON and terminal print these."""
