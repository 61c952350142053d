"""A graph with a ToolNode."""

from asked import ANSWER, MODEL, QUESTION, place
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode, tools_condition

url, _, where = place()


@tool
def add(a: int, b: int) -> int:
    """Adds."""
    return a + b


model = ChatOpenAI(model=MODEL, base_url=url + "/v1", api_key="none", temperature=0, max_tokens=200).bind_tools([add])
graph = StateGraph(MessagesState)
graph.add_node("model", lambda state: {"messages": [model.invoke(state["messages"])]})
graph.add_node("tools", ToolNode([add]))
graph.add_edge(START, "model")
graph.add_conditional_edges("model", tools_condition)
graph.add_edge("tools", "model")
said = graph.compile().invoke({"messages": [("user", QUESTION)]})["messages"]
assert [m.type for m in said] == ["human", "ai", "tool", "ai"] and said[-1].text == ANSWER, said
