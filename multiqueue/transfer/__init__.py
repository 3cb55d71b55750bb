"""The removal van: what a broker keeps, its declarations and its messages, to another broker by URL.

Promises that a message leaves here once the other broker has confirmed it, in the order of its queue, and that a move
which was broken off goes on where it was. It knows `broker`, `client` and `store`; the command line alone knows it.
The door imports nothing: `multiqueue store info` needs no client.
"""
