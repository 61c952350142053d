"""ToolCallingAgent, whole and streamed. It sends tool_choice: required in every request and has no option against it."""

from asked import ANSWER, MODEL, QUESTION, place
from smolagents import OpenAIServerModel, ToolCallingAgent, tool

url, _, where = place()


@tool
def add(a: int, b: int) -> int:
    """Adds.

    Args:
        a: one
        b: another
    """
    return a + b


for stream in [False] if where == "session" else [False, True]:
    model = OpenAIServerModel(MODEL, api_base=url + "/v1", api_key="none", temperature=0, max_tokens=200)
    agent = ToolCallingAgent(tools=[add], model=model, max_steps=4, stream_outputs=stream)
    agent.prompt_templates["system_prompt"] = "Add."
    said = agent.run(QUESTION)
    steps = [s for s in agent.memory.steps if hasattr(s, "tool_calls")]
    print(where, stream, said, [[c.name for c in s.tool_calls or []] for s in steps])
    if where != "session":  # there the policy chooses, and its template does not show what smolagents makes of the question
        assert said == ANSWER and steps[0].tool_calls[0].name == "add", said
