"""What is drawn of a result on a terminal: a module for each kind of it, which nothing but the command line imports."""
