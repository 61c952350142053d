"""Its FnCallAgent with use_raw_api: functions as the server reads them."""

from asked import ANSWER, MODEL, QUESTION, place
from qwen_agent.agents import Assistant
from qwen_agent.tools.base import BaseTool, register_tool

url, _, where = place()
ran = []


@register_tool("add")
class Add(BaseTool):
    description = "Adds."
    parameters = {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}}, "required": ["a", "b"]}

    def call(self, params, **kwargs):
        ran.append(self._verify_json_format_args(params))
        return str(sum(ran[-1].values()))


settings = {"use_raw_api": True, "temperature": 0, "max_tokens": 200, "seed": 1}
agent = Assistant(llm={"model": MODEL, "model_server": url + "/v1", "api_key": "none", "generate_cfg": settings}, function_list=["add"])
*_, last = agent.run([{"role": "user", "content": QUESTION}])
assert last[-1]["content"] == ANSWER and ran == [{"a": 17, "b": 25}], (last, ran)
