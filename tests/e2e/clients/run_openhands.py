"""Its SDK's agent: a command in its terminal tool, and then finish."""

import os

from asked import ANSWER, MODEL, QUESTION, place
from openhands.sdk import LLM, Agent, Conversation, Tool
from openhands.sdk.event import ActionEvent, ObservationEvent
from openhands.tools.terminal import TerminalTool

url, _, where = place()
seen = []
llm = LLM(model=f"openai/{MODEL}", base_url=url + "/v1", api_key="none", temperature=0, max_output_tokens=200, num_retries=0, usage_id="agent")
agent = Agent(llm=llm, tools=[Tool(name=TerminalTool.name)])
conversation = Conversation(agent=agent, workspace=os.getcwd(), callbacks=[seen.append], visualizer=None, max_iteration_per_run=4)
conversation.send_message(QUESTION)
conversation.run()
conversation.close()
calls = [e for e in seen if isinstance(e, ActionEvent)]
assert calls[0].tool_name == "terminal" and "42" in str([e.observation for e in seen if isinstance(e, ObservationEvent)][0]), seen
if where != "session":  # there its template shows what the terminal says beside 42, of which the policy was taught nothing
    assert [e.tool_name for e in calls] == ["terminal", "finish"] and calls[1].action.message == ANSWER, seen
