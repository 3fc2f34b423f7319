"""Answer quality of two patch sets against each other: multiple-choice questions and colours, asked of servers."""
