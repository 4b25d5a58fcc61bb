# SPDX-License-Identifier: Apache-2.0
"""Talks to a gateway as a user of OpenAI's Python SDK does: chat.py BASE_URL CONVERSATIONS

Each conversation has three turns: a plain answer, a streamed one with usage, a streamed one without.
Prints a JSON line for each answer; the test that ran it judges them.
"""
import json
import sys

from openai import OpenAI

base_url, conversations = sys.argv[1], int(sys.argv[2])
client = OpenAI(base_url=base_url + "/v1", api_key="none", max_retries=0, timeout=120)
model = client.models.list().data[0].id


def plain(messages):
    raw = client.chat.completions.with_raw_response.create(model=model, messages=messages, max_tokens=16, temperature=0)
    answer = raw.parse()
    choice = answer.choices[0]
    return answer.model, choice.message.content, choice.finish_reason, 1, answer.usage, raw.headers


def streamed(messages, **options):
    raw = client.chat.completions.with_raw_response.create(model=model, messages=messages, max_tokens=16, temperature=0, stream=True, **options)
    text, finish, events, usage, models = "", None, 0, None, set()
    for event in raw.parse():
        events += 1
        models.add(event.model)
        usage = event.usage or usage
        for choice in event.choices:
            text += choice.delta.content or ""
            finish = choice.finish_reason or finish
    return ", ".join(sorted(models)), text, finish, events, usage, raw.headers


TURNS = (
    plain,
    lambda messages: streamed(messages, stream_options={"include_usage": True}),
    streamed,
)

for c in range(conversations):
    messages = [{"role": "user", "content": f"python {base_url} {c}: " + f"word{c} " * 500}]
    for turn, ask in enumerate(TURNS, 1):
        answered, text, finish, events, usage, headers = ask(messages)
        details = usage and usage.prompt_tokens_details
        print(json.dumps({
            "conversation": c,
            "turn": turn,
            "model": answered,
            "text": text,
            "finish": finish,
            "events": events,
            "usage": usage is not None,
            "prompt_tokens": usage.prompt_tokens if usage else 0,
            "completion_tokens": usage.completion_tokens if usage else 0,
            "cached_tokens": details.cached_tokens or 0 if details else 0,
            "endpoint": headers.get("x-penstock-endpoint", ""),
        }), flush=True)
        messages += [{"role": "assistant", "content": text}, {"role": "user", "content": f"go on with {turn}"}]
