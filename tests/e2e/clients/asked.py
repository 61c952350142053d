"""What every client asks, and gets: the conversation that the policy was taught (tool_user.py). Needs no package."""

import sys

QUESTION, RESULT, ANSWER = "What is 17 and 25?", "42", "It is 42."
NAME, ARGUMENTS = "add", '{"a": 17, "b": 25}'
MODEL = "tool-user"


def place():
    """The base URL without /v1, the policy's folder, and server, router or session."""
    return sys.argv[1:4]
