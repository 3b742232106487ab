"""What runs on each node: the elastic agent, its fork server, and the coordinator that decides who trains together.

entry.py        one node, from arguments to exit status
node.py         torch's elastic agent over our two seams
link.py         the node's connection to the coordinator
coordinator.py  the other end of it
membership.py   the decisions, as a state machine without I/O
resizes.py      where the time of a resize goes
forkserver.py  import once, fork in hundredths of a second
events.py       what happened, one line each
"""
