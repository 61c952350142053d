"""What is asked of answers beyond schemathesis's own checks (test_schemathesis.py names this module to it)."""

import os

import schemathesis

# What may be answered before an endpoint is asked: `default` in the contracts stands for these and no other.
BEFORE = {400, 401, 403, 405, 408, 413, 415, 417, 429, 431, 503}


@schemathesis.hook
def before_call(context, case, kwargs):
    """Requests for a session go to one that is there; nobody waits for tasks that do not come."""
    if os.environ["CLIME_SESSION"] and case.path.startswith("/sessions/") and case.path_parameters:
        case.path_parameters["id"] = os.environ["CLIME_SESSION"]
    wait = case.body.get("wait_s") if isinstance(case.body, dict) else None
    if isinstance(wait, int | float) and 0 < wait <= 60:
        case.body["wait_s"] = 0.01


@schemathesis.check
def refusals(ctx, response, case):
    """A refusal says what to change, and stands for no status that the contract should have named."""
    listed = case.operation.definition.raw["responses"]
    status = response.status_code
    assert status != 500, "a failure of the program's own"
    if status not in BEFORE:
        assert str(status) in listed or f"{status // 100}XX" in listed, f"{status} is not in the contract"
    if 400 <= status < 500 and response.content:
        if response.headers["content-type"][0].startswith("application/json"):
            body = response.json()
            message = body["message"] if isinstance(body, dict) and "message" in body else None
            assert message is None or len(message) > 8, f"a message that says nothing: {message!r}"
            assert message is not None or "workers" in body, "no message"
        else:
            assert len(response.content) > 8, "a text that says nothing"
