"""An agent with a tool over hosted_vllm, streamed and not."""

import asyncio

from asked import ANSWER, MODEL, QUESTION, place
from google.adk.agents import LlmAgent
from google.adk.agents.run_config import RunConfig, StreamingMode
from google.adk.models.lite_llm import LiteLlm
from google.adk.runners import InMemoryRunner
from google.genai import types

url, _, where = place()
ran = []


def add(a: int, b: int) -> dict:
    """Adds."""
    ran.append((a, b))
    return {"sum": a + b}


async def ask(mode):
    llm = LiteLlm(model=f"hosted_vllm/{MODEL}", api_base=url + "/v1", api_key="none", temperature=0, max_tokens=200)
    runner = InMemoryRunner(agent=LlmAgent(name="adder", model=llm, instruction="Add.", tools=[add]), app_name="app")
    session = await runner.session_service.create_session(app_name="app", user_id="u")
    message = types.Content(role="user", parts=[types.Part(text=QUESTION)])
    said = ""
    async for event in runner.run_async(user_id="u", session_id=session.id, new_message=message, run_config=RunConfig(streaming_mode=mode)):
        if event.is_final_response() and event.content:
            said = event.content.parts[0].text
    return said


for mode in (StreamingMode.NONE, StreamingMode.SSE):
    ran.clear()
    said = asyncio.run(ask(mode))
    assert said == ANSWER and ran == [(17, 25)], (mode, said, ran)
