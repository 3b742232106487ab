"""What an experiment is: declared fields, and the RunSpec made of them."""
