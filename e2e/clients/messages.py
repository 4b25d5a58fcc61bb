# SPDX-License-Identifier: Apache-2.0
"""Talks to a gateway as a user of Anthropic's Python SDK does: messages.py BASE_URL MODEL

One plain answer and one streamed; prints a JSON line for each.
"""
import json
import sys

from anthropic import Anthropic

base_url, model = sys.argv[1:]
client = Anthropic(base_url=base_url, api_key="none", max_retries=0, timeout=120)
ask = {"model": model, "max_tokens": 16, "messages": [{"role": "user", "content": "hello " * 200}]}

answer = client.messages.create(**ask)
print(json.dumps({"turn": 1, "model": answer.model, "text": answer.content[0].text, "finish": answer.stop_reason, "completion_tokens": answer.usage.output_tokens}), flush=True)

with client.messages.stream(**ask) as stream:
    text = "".join(stream.text_stream)
    answer = stream.get_final_message()
print(json.dumps({"turn": 2, "model": answer.model, "text": text, "finish": answer.stop_reason, "completion_tokens": answer.usage.output_tokens}), flush=True)
