// Reads streams with the agent of AG-UI. The input is a JSON list; each item is the list of the parts of a stream, in the
// order in which a client received them. The output is the JSON list of the messages and the last event of each stream.
import { readFileSync } from "node:fs";
import { HttpAgent } from "@ag-ui/client";

const headers = { "content-type": "text/event-stream" };
const results = [];
for (const parts of JSON.parse(readFileSync(0, "utf8"))) {
  const fetch = async () => new Response(new Blob([parts.shift()]).stream(), { headers });
  const agent = new HttpAgent({ url: "http://localhost/", fetch });
  let last;
  while (parts.length) await agent.runAgent({}, { onEvent: ({ event }) => void (last = event) });
  results.push({ messages: agent.messages, last, interrupts: agent.pendingInterrupts });
}
process.stdout.write(JSON.stringify(results));
