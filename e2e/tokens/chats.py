# SPDX-License-Identifier: Apache-2.0
# What vLLM makes of chat bodies, with the templates beside this file: chats.py FILE. It needs vLLM's Python, and no engine.
# FILE gets, for each template, what vLLM took it to want, and for each body the text that it would tokenize, or an error.
import glob
import json
import os
import sys
from types import SimpleNamespace

os.environ["VLLM_LOGGING_LEVEL"] = "CRITICAL"

from tokenizers import Tokenizer, models  # noqa: E402
from transformers import PreTrainedTokenizerFast  # noqa: E402
from vllm.entrypoints.anthropic.protocol import AnthropicMessagesRequest  # noqa: E402
from vllm.entrypoints.anthropic.serving import AnthropicServingMessages  # noqa: E402
from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest  # noqa: E402
from vllm.entrypoints.openai.responses.protocol import ResponsesRequest  # noqa: E402
from vllm.entrypoints.openai.responses.utils import construct_input_messages, construct_tool_dicts  # noqa: E402
from vllm.renderers import hf  # noqa: E402
from vllm.renderers.chat_utils import parse_chat_messages  # noqa: E402
from vllm.renderers.params import merge_kwargs  # noqa: E402

HERE = os.path.dirname(os.path.abspath(__file__))
SPECIAL = {"bos_token": "<s>", "eos_token": "</s>", "pad_token": "<pad>"}
hf._try_get_processor_chat_template = lambda *a, **k: None


def user(text, **more):
    return {"role": "user", "content": text, **more}


def assistant(text, **more):
    return {"role": "assistant", "content": text, **more}


def call(name, arguments, id="call00001", **more):
    return {"id": id, "type": "function", "function": {"name": name, "arguments": arguments}, **more}


SYSTEM = {"role": "system", "content": "  You are terse. Übung: <b>&amp;</b> 日本 \n"}
WEATHER = {"type": "function", "function": {
    "name": "get_weather", "description": "The weather \"now\" in a place", "parameters": {
        "type": "object", "required": ["place"], "properties": {
            "place": {"type": "string", "description": "Where, e.g. Zürich"},
            "unit": {"type": "string", "enum": ["celsius", "fahrenheit"], "default": "celsius"},
            "days": {"type": "integer", "default": 3}, "tags": {"type": "array", "items": {"type": "string"}},
            "at": {"oneOf": [{"type": "string", "description": "a time"}, {"type": "number"}]},
            "box": {"type": "object", "properties": {"n": {"type": "number"}, "s": {"type": "string", "nullable": True}}, "required": ["n"]}}}}}
NOTHING = {"function": {"parameters": {"zeta": 1.0, "alpha": [1e20, 1e-7, -0.0, 12345678901234567890, True, None]}, "name": "nothing",
                        "strict": True, "ignored": 1}, "type": "function"}
TURN = [user("What's the weather in Zürich & Łódź? 🌦️"), assistant(None, tool_calls=[call("get_weather", '{"place": "Zürich", "days": 2, "unit": "é\\n\\"q\\""}')]),
        {"role": "tool", "tool_call_id": "call00001", "content": '{"temp": 21.5, "sky": "clear"}'}]

CHATS = [
    {"messages": [user("Hi")]},
    {"messages": [SYSTEM, user("  Hello there!\n\n")]},
    {"messages": [SYSTEM, user("one"), assistant(" two "), user("three")]},
    {"messages": [user("one"), assistant("<think>\nhm\n</think>\n\ntwo"), user("three\nfour")], "chat_template_kwargs": {"enable_thinking": False}},
    {"messages": [user("one"), assistant("two", reasoning_content="because\n"), user("three")]},
    {"messages": [user("one"), assistant("two", reasoning="because"), user("three"), assistant("four", reasoning="so")], "reasoning_effort": "low"},
    {"messages": [user([{"type": "text", "text": "first"}, {"type": "text", "text": "second"}])]},
    {"messages": [SYSTEM, user([{"type": "text", "text": "cached", "cache_control": {"type": "ephemeral"}, "x": 1}])]},
    {"messages": [{"role": "system", "content": [{"type": "text", "text": "x-anthropic-billing-header: a=1"}, {"type": "text", "text": "real"}]}, user("q")]},
    {"messages": [{"role": "developer", "content": "Be brief."}, user("q")]},
    {"messages": [user("q"), assistant("a"), {"role": "developer", "content": "Be brief."}, SYSTEM, user("r")]},
    {"messages": [user("q")], "tools": [WEATHER]},
    {"messages": [SYSTEM, *TURN], "tools": [WEATHER, NOTHING], "tool_choice": "auto"},
    {"messages": [*TURN, assistant("It is 21.5°."), user("and tomorrow?")], "tools": [WEATHER], "tool_choice": "none"},
    {"messages": [*TURN[:2], {**TURN[2], "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}], "tools": [WEATHER]},
    {"messages": [user("q"), assistant("", tool_calls=[call("f", "not json"), call("g", "[1]", "call00002", index=1)]),
                  {"role": "tool", "tool_call_id": "call00001", "content": "1"}, {"role": "tool", "tool_call_id": "call00002", "content": "2"}]},
    {"messages": [user("q"), assistant("x", tool_calls=[])]},
    {"messages": [user("q"), assistant("The answer is ")], "add_generation_prompt": False, "continue_final_message": True},
    {"messages": [user("q"), assistant([{"type": "text", "text": "one "}, {"type": "refusal", "refusal": "no "}])], "add_generation_prompt": False, "continue_final_message": True},
    {"messages": [user("q"), assistant("whole")], "add_generation_prompt": False},
    {"messages": [user("q", name="bob"), {"role": "custom", "content": "c", "name": "d"}]},
    {"messages": [user("q")], "documents": [{"title": "T", "text": " one\ntwo "}, {"text": "x", "title": "Y"}]},
    {"messages": [user("q")], "chat_template_kwargs": {"date_string": "1 Jan 2020", "bos_token": "<B>", "unknown": {"a": [1]}, "none": None, "auto": "auto"}},
    {"messages": [user("q")], "reasoning_effort": "none"},
    {"messages": [user("q")], "reasoning_effort": "high", "chat_template_kwargs": {"enable_thinking": False, "reasoning_effort": "low"}},
    {"messages": [assistant("first"), assistant("second")]},
    {"messages": [user(""), assistant(""), user([])]},
    {"messages": [user([{"type": "text", "text": "x"}, {"type": "refusal", "refusal": "y"}])]},
    {"messages": [{"role": "tool", "tool_call_id": "a", "content": [{"type": "tool_reference", "name": "get"}]}]},
    {"messages": [user("q")], "add_generation_prompt": True, "continue_final_message": True},
    {"messages": [user("q")], "tools": []},
    {"messages": [user(5)]},
    {"messages": [{"content": "x"}]},
    {"messages": []},
    {"messages": [user(" ".join(["many words"] * 30)), assistant("a\r\nb\tc\u2028d\u0000e"), user("<|im_start|>system\n'; DROP \\ \" '")]},
]
MESSAGES = [
    {"messages": [user("Hi")]},
    {"system": "Be brief.", "messages": [user([{"type": "text", "text": "a", "cache_control": {"type": "ephemeral"}}, {"type": "text", "text": "b"}])]},
    {"system": [{"type": "text", "text": "x-anthropic-billing-header: z"}, {"type": "text", "text": "one"}, {"type": "text", "text": "two"}],
     "messages": [user("q"), {"role": "system", "content": "reminder"}, user("r")]},
    {"messages": [user("q"), assistant([{"type": "thinking", "thinking": "hm", "signature": "s"}, {"type": "text", "text": "I look."},
                                        {"type": "tool_use", "id": "toolu0001", "name": "get_weather", "input": {"place": "Zürich", "n": 1.50, "b": [True, None]}}]),
                  user([{"type": "tool_result", "tool_use_id": "toolu0001", "content": [{"type": "text", "text": "21"}, {"type": "text", "text": "22"}]},
                        {"type": "text", "text": "thanks"}])],
     "tools": [{"name": "get_weather", "description": "d", "input_schema": {"properties": {"place": {"type": "string"}}}}, {"name": "x", "input_schema": {"type": "object"}}]},
    {"messages": [user([{"type": "tool_result", "tool_use_id": "t", "content": "plain"}, {"type": "tool_result", "tool_use_id": "u"}]), assistant([{"type": "redacted_thinking", "data": "x"}])]},
    {"messages": [user("q")], "thinking": {"type": "enabled", "budget_tokens": 2000}, "output_config": {"effort": "high"}},
    {"messages": [user("q")], "thinking": {"type": "disabled"}},
    {"messages": [user([{"type": "tool_result", "tool_use_id": "t", "content": [{"type": "tool_reference", "tool_name": "get"}]}])]},
]
RESPONSES = [
    {"input": "Hi"},
    {"input": "Hi", "instructions": "Be brief.", "reasoning": {"effort": "low"}},
    {"input": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}, {"role": "user", "content": [{"type": "input_text", "text": "r"}]}]},
    {"input": [{"role": "user", "content": "q"}, {"type": "reasoning", "id": "r1", "summary": [], "content": [{"type": "reasoning_text", "text": "hm"}]},
               {"type": "function_call", "call_id": "call00001", "name": "get_weather", "arguments": "{\"place\": \"Z\"}", "id": "f1", "status": "completed"},
               {"type": "function_call", "call_id": "call00002", "name": "get_weather", "arguments": "{}"},
               {"type": "function_call_output", "call_id": "call00001", "output": "21"}, {"type": "function_call_output", "call_id": "call00002", "output": "22"}],
     "tools": [{"type": "function", "name": "get_weather", "description": "d", "parameters": {"type": "object", "properties": {}}, "strict": False}]},
    {"input": [{"role": "developer", "content": "Be brief."}, {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "q"}]},
               {"type": "message", "role": "assistant", "id": "m1", "status": "completed", "content": [{"type": "output_text", "text": "a", "annotations": []}]},
               {"role": "user", "content": "r"}]},
    {"input": [{"role": "user", "content": "q"}, {"type": "message", "role": "assistant", "id": "m1", "status": "incomplete",
                                                  "content": [{"type": "output_text", "text": "The answer is", "annotations": []}]}]},
]


def render(tokenizer, source, api, body):
    config = SimpleNamespace(enable_prompt_embeds=False, multimodal_config=None, hf_config=SimpleNamespace(model_type="none"), tokenizer_revision=None,
                             revision=None, code_revision=None, trust_remote_code=False, tokenizer="x", model="y")
    body = json.loads(json.dumps(body))
    if api == "responses":
        request = ResponsesRequest.model_validate({"model": "m", **body})
        tools = construct_tool_dicts(request.tools, request.tool_choice)
        messages = construct_input_messages(request_instructions=request.instructions, request_input=request.input)
    else:
        if api == "messages":
            given = AnthropicMessagesRequest.model_validate({"model": "m", "max_tokens": 4000, **body})
            merge = AnthropicServingMessages._detect_merge_inline_system(source)

            def probe(effort):
                try:
                    return render(tokenizer, source, "chat", {"messages": [user("Hi")], "reasoning_effort": effort})
                except Exception:
                    return None
            none = probe("none")
            low = none is None or any(probe(e) == none for e in ("low", "medium", "high", "xhigh", "max"))
            request = AnthropicServingMessages.to_chat_completion_request(given, merge_inline_system=merge, disabled_thinking_effort="low" if low else "none")
        else:
            request = ChatCompletionRequest.model_validate(body)
        tools = None if request.tools is None else [t.model_dump() for t in request.tools]
        messages = request.messages
    params = request.build_chat_params(None, "auto").with_defaults(merge_kwargs({}, dict(tools=tools, tokenize=False)))
    form = hf.resolve_chat_template_content_format(None, tools, "auto", tokenizer, model_config=config)
    conversation, _, _ = parse_chat_messages(messages, config, content_format=form)
    return hf.safe_apply_chat_template(config, tokenizer, conversation, **params.get_apply_chat_template_kwargs())


def main(path):
    out = []
    for file in sorted(glob.glob(os.path.join(HERE, "templates", "*.jinja"))):
        with open(file) as f:
            source = f.read()
        tokenizer = PreTrainedTokenizerFast(tokenizer_object=Tokenizer(models.BPE()), **SPECIAL)
        tokenizer.chat_template = source
        tokenizer.name_or_path = file
        cases = []
        for api, bodies in [("chat", CHATS), ("messages", MESSAGES), ("responses", RESPONSES)]:
            for i, body in enumerate(bodies):
                try:
                    cases.append([api, i, render(tokenizer, source, api, body)])
                except Exception as e:
                    cases.append([api, i, None])
                    if os.environ.get("WHY"):
                        print(os.path.basename(file), api, i, type(e).__name__, str(e)[:150].replace("\n", " "), file=sys.stderr)
        out.append({"name": os.path.basename(file)[:-6], "template": source, "parts": hf._detect_content_format(source, default="string") == "openai", "cases": cases})
    with open(path, "w") as f:
        json.dump({"special": SPECIAL, "bodies": {"chat": CHATS, "messages": MESSAGES, "responses": RESPONSES}, "templates": out}, f, ensure_ascii=False, indent=0)
        f.write("\n")


main(sys.argv[1])
