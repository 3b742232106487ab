"""What runs on each node, and the coordinator that decides who trains together.

entry.py         one node, from arguments to exit status
node.py          torch's elastic agent over our coordinator and fork server
workers.py       the node's workers over generations: those that stay, and those that are forked
worker_logs.py   what a worker's log says of its end
stage_runner.py  runs stages other than training
forkserver.py    import once, fork in hundredths of a second (fork_children.py: the server's side; fork_messages.py)
link.py          the node's connection to the coordinator

messages.py      what both ends send each other, and how it looks on the wire

server.py        the coordinator's end of the connections
coordinator.py   the process: all stages of an attempt, or training alone
training.py      the coordinator while the attempt trains
membership.py    which nodes train together: a state machine without I/O; rules.py are its rules
stage_owner.py   which node carries out another stage: a state machine without I/O
resizes.py       where the time of a resize goes
"""
