// Reads streams with the reader of the AI SDK. The input is a JSON list; each item is the list of the parts of a stream,
// in the order in which a client received them. The output is the JSON list of the messages.
import { readFileSync } from "node:fs";
import { DefaultChatTransport, readUIMessageStream } from "ai";

class Transport extends DefaultChatTransport {
  read(text) {
    return this.processResponseStream(new Blob([text]).stream());
  }
}

const transport = new Transport();
const results = [];
for (const parts of JSON.parse(readFileSync(0, "utf8"))) {
  let message;
  for (const text of parts) {
    // The reader changes its message, so it gets a copy of the last message that it has yielded.
    const options = { message: structuredClone(message), stream: transport.read(text), terminateOnError: true };
    for await (const next of readUIMessageStream(options)) message = next;
  }
  results.push(message);
}
process.stdout.write(JSON.stringify(results));
