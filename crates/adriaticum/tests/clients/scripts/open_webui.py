"""The function of `deploy/open-webui`, called as Open WebUI calls it. Prints each answer or error, with all events."""

import asyncio
import json
import sys

import adriaticum


async def ask(case):
    function, events = adriaticum.Pipe(), []
    function.valves = function.Valves(base_url=case["base_url"], api_key=case["api_key"])

    async def emit(event):
        events.append(event)

    arguments = {"__event_emitter__": emit, "__message_id__": "a message", "__task__": None, "__task_body__": None}
    try:
        end = {"answer": await function.pipe(case["body"], **arguments | case["arguments"])}
    except Exception as error:
        end = {"error": str(error)}
    return end | {"events": events}


for case in json.load(sys.stdin):
    print(json.dumps(asyncio.run(ask(case))), flush=True)
