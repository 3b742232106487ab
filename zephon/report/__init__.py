"""Tables and pictures made from what a run left in its directory."""
