"""Claude Code, headless, by its SDK: it runs Bash as the policy says and ends with its answer."""

import asyncio
import os

from asked import ANSWER, MODEL, QUESTION, place
from claude_agent_sdk import AssistantMessage, ClaudeAgentOptions, ResultMessage, query

url, _, where = place()
env = {"ANTHROPIC_BASE_URL": url, "ANTHROPIC_API_KEY": "none", "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1", "DISABLE_AUTOUPDATER": "1",
       "IS_SANDBOX": "1", "HOME": os.environ["HOME"], "PATH": os.environ["PATH"], "CLAUDE_CODE_MAX_OUTPUT_TOKENS": "200"}  # fmt: skip


async def ask():
    options = ClaudeAgentOptions(model=MODEL, env=env, permission_mode="bypassPermissions", allowed_tools=["Bash"], max_turns=4, cwd=os.getcwd())
    return [m async for m in query(prompt=QUESTION, options=options)]


messages = asyncio.run(ask())
calls = [b for m in messages if isinstance(m, AssistantMessage) for b in m.content if hasattr(b, "input")]
(result,) = [m for m in messages if isinstance(m, ResultMessage)]
assert [c.name for c in calls] == ["Bash"] and result.result == ANSWER and not result.is_error, (calls, result)
