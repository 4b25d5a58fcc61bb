# SPDX-License-Identifier: Apache-2.0
"""A gateway's side with libzmq and msgspec: subscriber.py dial|bind ADDRESS [REPLAYS].

Bound, it prints its address first. It prints each message until three have come, and then, with REPLAYS, what a replay from 1 brings.
"""
import json, sys
import msgspec, zmq


def tell(topic, seq, payload):
    print(topic.decode(), int.from_bytes(seq, "big", signed=True), json.dumps(msgspec.msgpack.decode(payload)) if payload else "-", flush=True)


ctx = zmq.Context()
sub = ctx.socket(zmq.SUB)
sub.setsockopt(zmq.SUBSCRIBE, b"kv@")
sub.setsockopt(zmq.HEARTBEAT_IVL, 20)
if sys.argv[1] == "bind":
    sub.bind(sys.argv[2])
    print(sub.getsockopt_string(zmq.LAST_ENDPOINT), flush=True)
else:
    sub.connect(sys.argv[2])
for _ in range(3):
    tell(*sub.recv_multipart())
if len(sys.argv) > 3:
    req = ctx.socket(zmq.DEALER)
    req.connect(sys.argv[3])
    req.send_multipart((b"", (1).to_bytes(8, "big")))
    seq = b""
    while seq != b"\xff" * 8:
        _, topic, seq, payload = req.recv_multipart()
        tell(topic, seq, payload)
