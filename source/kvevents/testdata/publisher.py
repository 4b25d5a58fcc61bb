# SPDX-License-Identifier: Apache-2.0
"""An engine's side with libzmq and msgspec. Each line of input is a command; READY is printed once it was done.

bind EVENTS REPLAY | dial ADDRESS: opens the sockets     send SEQ JSON: publishes and keeps     lose SEQ JSON: only keeps
close: leaves who was dialled     ping MS: heartbeats of libzmq from now on     subscribed: prints a subscription instead
"""
import json, sys, threading
import msgspec, zmq

ctx = zmq.Context()
pub = None
buffer, beat, topic = [], 0, b"kv@engine@model"
lock = threading.Lock()

def serve(sock):
    while True:
        try:
            client, empty, start = sock.recv_multipart()
        except zmq.ZMQError:
            return
        with lock:
            for seq, payload in buffer:
                if seq >= int.from_bytes(start, "big"):
                    sock.send_multipart((client, b"", topic, seq.to_bytes(8, "big"), payload))
            sock.send_multipart((client, b"", b"", b"\xff" * 8, b""))

for line in sys.stdin:
    word, *rest = line.split(maxsplit=2)
    if word == "ping":
        beat = int(rest[0])
    elif word in ("bind", "dial"):
        pub = ctx.socket(zmq.XPUB)
        pub.setsockopt(zmq.HEARTBEAT_IVL, beat)
        pub.setsockopt(zmq.LINGER, 0)
        if word == "dial":
            pub.connect(rest[0])
        else:
            pub.bind("tcp://127.0.0.1:" + rest[0])
            router = ctx.socket(zmq.ROUTER)
            router.setsockopt(zmq.LINGER, 0)
            router.bind("tcp://127.0.0.1:" + rest[1])
            threading.Thread(target=serve, args=(router,), daemon=True).start()
    elif word == "subscribed":
        print(repr(pub.recv()), flush=True)
        continue
    elif word in ("send", "lose"):
        payload = msgspec.msgpack.encode(json.loads(rest[1]))
        with lock:
            buffer.append((int(rest[0]), payload))
        if word == "send":
            pub.send_multipart((topic, int(rest[0]).to_bytes(8, "big"), payload))
    elif word == "close":
        pub.close()
    print("READY", flush=True)
