// Checks pages with the AI SDK and the schemas of AG-UI. The input is a JSON object: `aisdk` and `agui` are lists of
// pages, each a list of messages. The output is a JSON list of the reasons for which pages are refused.
import { readFileSync } from "node:fs";
import { MessageSchema } from "@ag-ui/core/schemas";
import { convertToModelMessages, validateUIMessages } from "ai";

const { aisdk, agui } = JSON.parse(readFileSync(0, "utf8"));
const refused = [];
for (const [number, messages] of aisdk.entries()) {
  try {
    await convertToModelMessages(await validateUIMessages({ messages }));
  } catch (error) {
    refused.push(`aisdk ${number}: ${error.message}`);
  }
}
for (const [number, messages] of agui.entries()) {
  for (const message of messages) {
    const result = MessageSchema.safeParse(message);
    if (!result.success) refused.push(`agui ${number}: ${result.error.message}`);
  }
}
console.log(JSON.stringify(refused));
