"""A crew of one with a tool."""

from asked import ANSWER, MODEL, QUESTION, place
from crewai import LLM, Agent, Crew, Task
from crewai.tools import tool

url, _, where = place()
ran = []


@tool("add")
def add(a: int, b: int) -> str:
    """Adds."""
    ran.append((a, b))
    return str(a + b)


llm = LLM(model=f"openai/{MODEL}", base_url=url + "/v1", api_key="none", temperature=0, max_tokens=200)
agent = Agent(role="adder", goal="add", backstory="adds", tools=[add], llm=llm, max_iter=4)
said = Crew(agents=[agent], tasks=[Task(description=QUESTION, expected_output="a number", agent=agent)]).kickoff()
assert said.raw == ANSWER and ran == [(17, 25)], (said.raw, ran)
