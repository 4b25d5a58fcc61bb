# SPDX-License-Identifier: Apache-2.0
"""Reads batches in hexadecimal, the first with events as maps and the second as arrays, and prints them as msgspec encodes them.

The declarations have the fields of vLLM 0.32's, vllm/distributed/kv_events.py, in their order and with their options;
as arrays, those that there were when events were arrays.
"""
import sys
from typing import Any, Optional, Union

import msgspec


def declare(array):
    class Event(msgspec.Struct, array_like=array, omit_defaults=True, tag=True):
        pass

    class BlockStored(Event):
        block_hashes: list[int]
        parent_block_hash: Optional[int]
        token_ids: list[int]
        block_size: int
        lora_id: Optional[int]
        medium: Optional[str]
        lora_name: Optional[str]
        extra_keys: Optional[list[Optional[tuple[Any, ...]]]] = None
        group_idx: Optional[int] = None
        kv_cache_spec_kind: Optional[str] = None
        kv_cache_spec_sliding_window: Optional[int] = None
        if not array:
            locality: Optional[str] = None
            ownership: Optional[str] = None
            session_id: Optional[str] = None

    class BlockRemoved(Event):
        block_hashes: list[int]
        medium: Optional[str]
        group_idx: Optional[int] = None
        if not array:
            locality: Optional[str] = None
            ownership: Optional[str] = None

    class AllBlocksCleared(Event):
        pass

    class Batch(msgspec.Struct, array_like=True, omit_defaults=True):
        ts: float
        events: list[Union[BlockStored, BlockRemoved, AllBlocksCleared]]
        data_parallel_rank: Optional[int] = None

    return Batch


for array in False, True:
    batch = msgspec.msgpack.decode(bytes.fromhex(sys.stdin.readline()), type=declare(array))
    print(msgspec.msgpack.encode(batch).hex())
