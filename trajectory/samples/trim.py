#!/usr/bin/env python3
"""Makes a committed sample out of its source: shorter, and nothing else changed. Deterministic; the README says what
was taken out of which file.

    python3 trim.py KIND < SOURCE > SAMPLE      # KIND: swe-agent, mini, openhands, predictions or trae
"""

import json
import sys

CUT = "\n[cut for this sample]\n"


def cut(text, head, tail):
    return text if len(text) <= head + tail else text[:head] + CUT + text[len(text) - tail :]


def swe_agent(text):
    run = json.loads(text)
    for message in run["history"]:
        if message.get("is_demo"):
            message["content"] = cut(message["content"], 400, 100)
    for name in [name for name in run["info"] if name.startswith("edited_files")]:
        del run["info"][name]
    print(json.dumps(run, indent=1))


def mini(text):
    run = json.loads(text)
    for message in run["messages"]:
        response = message.get("extra", {}).get("response", {})
        for key in ("choices", "system_fingerprint", "service_tier"):
            response.pop(key, None)
    print(json.dumps(run, indent=1))


def openhands(text):
    first, _, third = text.splitlines()
    for line in (first, third):
        row = json.loads(line)
        for event in row["history"]:
            if event.get("observation"):
                event.get("tool_call_metadata", {}).pop("model_response", None)
            if event.get("action") == "system":
                event["args"].pop("tools", None)
                event["args"]["content"] = event["message"] = event["message"][:80]
            response = event.get("tool_call_metadata", {}).get("model_response", {})
            for key in ("choices", "system_fingerprint", "service_tier"):
                response.pop(key, None)
            event.pop("llm_metrics", None)
            for key in ("old_content", "new_content", "diff"):
                event.get("extras", {}).pop(key, None)
            for key in ("content", "message"):
                if event.get("observation") and event.get(key):
                    event[key] = cut(event[key], 500, 100)
        row["metrics"].pop("response_latencies", None)
        row["metrics"].pop("token_usages", None)
        print(json.dumps(row))


def predictions(text):
    print(json.dumps(json.loads(text)[:3], indent=1))


def trae(text):
    for line in text.splitlines():
        row = json.loads(line)
        for key in ("patches", "success_id"):
            row[key] = row[key][:4]
        row["patches"] = [cut(patch, 3000, 0) for patch in row["patches"]]
        print(json.dumps(row))


KINDS = {"swe-agent": swe_agent, "mini": mini, "openhands": openhands, "predictions": predictions, "trae": trae}
KINDS[sys.argv[1]](sys.stdin.read())
