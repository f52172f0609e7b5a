"""nibble serve as the public `openai` client sees it: openai_client.py URL KEY. Exits 0 if everything is as it should be."""
import asyncio
import json
import sys

import openai

client = openai.OpenAI(base_url=sys.argv[1], api_key=sys.argv[2], max_retries=0)
MODEL = client.models.list().data[0].id


def tool(name, description, **properties):
    parameters = {"type": "object", "properties": properties, "required": list(properties)}
    return {"type": "function", "function": {"name": name, "description": description, "parameters": parameters}}


TEXT, INTEGER, BOOLEAN = {"type": "string"}, {"type": "integer"}, {"type": "boolean"}
TOOLS = [
    tool("get_weather", "Weather of a city", city=TEXT),
    tool("calculate", "Add two numbers", a=INTEGER, b=INTEGER),
    tool("set_lamp", "Set a lamp", colour=TEXT, level=INTEGER, on=BOOLEAN),
    tool("send_message", "Send a message", to=TEXT, text=TEXT),
]


def ask(messages, **more):
    return client.chat.completions.create(model=MODEL, messages=messages, temperature=0, **more)


def user(text):
    return [{"role": "user", "content": text}]


def check_chat():
    r = ask(user("What is the capital of France?"), reasoning_effort="none")
    assert r.choices[0].message.content == "The capital of France is Paris.", r
    assert r.choices[0].finish_reason == "stop" and r.usage.total_tokens == r.usage.prompt_tokens + r.usage.completion_tokens


def check_thinking():
    r = ask(user("What is the capital of France?"), reasoning_effort="low")
    assert "Paris" in r.choices[0].message.content and r.choices[0].message.reasoning_content, r
    assert r.usage.completion_tokens_details.reasoning_tokens > 0


def check_stream():
    whole = ask(user("What is the capital of Japan?"), reasoning_effort="low")
    content = reasoning = ""
    usage = None
    for chunk in ask(user("What is the capital of Japan?"), reasoning_effort="low", stream=True,
                     stream_options={"include_usage": True}):
        for c in chunk.choices:
            content += c.delta.content or ""
            reasoning += getattr(c.delta, "reasoning_content", None) or ""
        usage = chunk.usage or usage
    assert content == whole.choices[0].message.content
    assert reasoning == whole.choices[0].message.reasoning_content
    assert usage.completion_tokens == whole.usage.completion_tokens


def check_stream_helper():
    """The client's own joining of a stream, which is strict about indexes, roles and what comes when."""
    whole = ask(user("What is the capital of Japan?"), reasoning_effort="none", logprobs=True)
    with client.chat.completions.stream(model=MODEL, messages=user("What is the capital of Japan?"), temperature=0,
                                        reasoning_effort="none", logprobs=True) as stream:
        text = "".join(e.delta for e in stream if e.type == "content.delta")
        joined = stream.get_final_completion()
    message = joined.choices[0].message
    assert text == message.content == whole.choices[0].message.content, (text, joined)
    assert message.role == "assistant" and joined.choices[0].finish_reason == "stop" and joined.id and joined.model == MODEL
    assert [e.token for e in joined.choices[0].logprobs.content] == [e.token for e in whole.choices[0].logprobs.content]


def check_company():
    """Eight at the same time, streamed, by the asynchronous client: each gets what it gets alone."""
    cities = ["France", "Japan", "Italy", "Spain", "Norway", "Egypt", "Peru", "Kenya"]
    questions = [f"What is the capital of {c}?" for c in cities]
    alone = [ask(user(q), reasoning_effort="low").choices[0].message.content for q in questions]

    async def one(c, question):
        stream = await c.chat.completions.create(model=MODEL, messages=user(question), temperature=0, reasoning_effort="low", stream=True)
        return "".join([chunk.choices[0].delta.content or "" async for chunk in stream if chunk.choices])

    async def together():
        async with openai.AsyncOpenAI(base_url=sys.argv[1], api_key=sys.argv[2], max_retries=0) as c:
            return await asyncio.gather(*(one(c, q) for q in questions))

    assert asyncio.run(together()) == alone


def check_leaving():
    """A stream that is left early, and the same connection pool afterwards."""
    for _ in range(3):
        with ask(user("Tell me a story."), stream=True, extra_body={"ignore_eos": True}) as stream:
            for i, _ in enumerate(stream):
                if i == 3:
                    break
    check_chat()


def stream_calls(messages):
    calls = {}
    for chunk in ask(messages, tools=TOOLS, reasoning_effort="low", stream=True):
        for c in chunk.choices[0].delta.tool_calls or []:
            call = calls.setdefault(c.index, {"name": "", "arguments": ""})
            call["name"] += c.function.name or ""
            call["arguments"] += c.function.arguments or ""
    return [(c["name"], json.loads(c["arguments"])) for c in calls.values()]


def check_tools():
    """A round trip for each function: the call, its result, the answer that uses it; history costs no reading twice."""
    rounds = [
        ("What is the weather in Rome?", "get_weather", {"city": "Rome"}, '{"temperature": 21, "sky": "sunny"}', "21"),
        ("Use the calculator: 98 and 344.", "calculate", {"a": 98, "b": 344}, "442", "442"),
        ("Set the lamp to blue, level 8.", "set_lamp", {"colour": "blue", "level": 8, "on": True}, "done", ""),
        ("Write to Nora: crown salmon summer harbor", "send_message", {"to": "Nora", "text": "crown salmon summer harbor"}, "sent", ""),
    ]
    for question, name, arguments, result, wanted in rounds:
        messages = user(question)
        r = ask(messages, tools=TOOLS, reasoning_effort="low")
        message = r.choices[0].message
        assert r.choices[0].finish_reason == "tool_calls", r
        call = message.tool_calls[0]
        assert (call.function.name, json.loads(call.function.arguments)) == (name, arguments), call
        assert stream_calls(messages) == [(name, arguments)]
        messages.append(message.model_dump(exclude_none=True))
        messages.append({"role": "tool", "tool_call_id": call.id, "content": result})
        r2 = ask(messages, tools=TOOLS, reasoning_effort="low")
        assert wanted in r2.choices[0].message.content, r2
        assert r2.usage.prompt_tokens_details.cached_tokens >= r.usage.prompt_tokens - 128, r2.usage
    r = ask(user("Hello there"), tools=TOOLS, reasoning_effort="low", max_tokens=300,
            tool_choice={"type": "function", "function": {"name": "send_message"}})
    assert [c.function.name for c in r.choices[0].message.tool_calls or []][:1] == ["send_message"] or \
        r.choices[0].finish_reason == "length", r


def check_logprobs():
    r = ask(user("What is the capital of France?"), reasoning_effort="none", logprobs=True, top_logprobs=3)
    entries = r.choices[0].logprobs.content
    assert len(entries) == r.usage.completion_tokens and all(len(e.top_logprobs) == 3 for e in entries)
    assert b"".join(bytes(e.bytes) for e in entries[:-1]).decode() == r.choices[0].message.content


def check_choices_and_stops():
    r = client.chat.completions.create(model=MODEL, messages=user("Say a word."), n=3, seed=4, temperature=1.2, max_tokens=8)
    assert [c.index for c in r.choices] == [0, 1, 2]
    r = ask(user("What is the capital of France?"), reasoning_effort="none", stop=["Paris"])
    assert r.choices[0].message.content == "The capital of France is " and r.choices[0].finish_reason == "stop"
    r = client.completions.create(model=MODEL, prompt="Once upon", max_tokens=5, temperature=0)
    assert r.choices[0].finish_reason == "length" and r.usage.completion_tokens == 5
    pieces = client.completions.create(model=MODEL, prompt="Once upon", max_tokens=5, temperature=0, stream=True)
    assert "".join(p.choices[0].text for p in pieces if p.choices) == r.choices[0].text


def fails(error, **arguments):
    try:
        client.chat.completions.create(**{"model": MODEL, "messages": user("x"), **arguments})
    except error as e:
        return e
    raise AssertionError(f"no {error.__name__} for {arguments}")


def check_errors():
    assert fails(openai.BadRequestError, temperature=9).param == "temperature"
    assert fails(openai.NotFoundError, model="nope").code == "model_not_found"
    assert fails(openai.BadRequestError, messages=[]).param == "messages"
    try:
        client.models.retrieve("nope")
        raise AssertionError("an unknown model was found")
    except openai.NotFoundError:
        pass
    long = fails(openai.BadRequestError, messages=user("word " * 5000))
    assert long.code == "context_length_exceeded" and long.param == "messages" and long.request_id, long
    try:
        openai.OpenAI(base_url=sys.argv[1], api_key="wrong", max_retries=0).models.list()
        raise AssertionError("a wrong key was taken")
    except openai.AuthenticationError as e:
        assert e.code == "invalid_api_key"


for check in (check_chat, check_thinking, check_stream, check_stream_helper, check_company, check_leaving, check_tools, check_logprobs,
              check_choices_and_stops, check_errors):
    check()
    print("ok", check.__name__)
