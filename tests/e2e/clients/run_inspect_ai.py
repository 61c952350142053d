"""Its providers for such servers: an answer, a call of a tool, a schema."""

import asyncio

from asked import MODEL, NAME, QUESTION, place
from inspect_ai.model import ChatMessageUser, GenerateConfig, ResponseSchema, get_model
from inspect_ai.tool import ToolInfo, ToolParams
from inspect_ai.util import JSONSchema

url, _, where = place()
tool = ToolInfo(name=NAME, description="adds", parameters=ToolParams(properties={
    "a": JSONSchema(type="integer", description="one"), "b": JSONSchema(type="integer", description="another")}, required=["a", "b"]))  # fmt: skip


async def ask(kind, base, **more):
    config = GenerateConfig(temperature=0, max_tokens=200, max_retries=0)
    async with get_model(f"{kind}/{MODEL}", base_url=base, api_key="none", config=config, **more) as model:
        got = await model.generate([ChatMessageUser(content=QUESTION)], tools=[tool])
        (call,) = got.message.tool_calls
        assert (call.function, call.arguments) == (NAME, {"a": 17, "b": 25}), (kind, got)
        schema = ResponseSchema(name="s", json_schema=JSONSchema(type="object", properties={"ok": JSONSchema(type="boolean")},
                                                                 required=["ok"], additionalProperties=False), strict=True)  # fmt: skip
        if kind != "anthropic":
            got = await model.generate([ChatMessageUser(content=QUESTION)], config=GenerateConfig(response_schema=schema))
            assert got.completion.replace(" ", "").startswith('{"ok":'), (kind, got)


for kind, base, more in (("openai-api/here", url + "/v1", {}), ("openai", url + "/v1", {"responses_api": True}),
                         ("vllm", url + "/v1", {}), ("sglang", url + "/v1", {}), ("anthropic", url, {})):  # fmt: skip
    asyncio.run(ask(kind, base, **more))
