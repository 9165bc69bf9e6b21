// Drives every route with the official SDKs: node sdk_smoke.mjs URL MODEL
// Prints one JSON object with what was answered; ends with a status other than 0 where an SDK finds fault.
import Anthropic from "@anthropic-ai/sdk";
import OpenAI from "openai";

const [url, model] = process.argv.slice(2);
const settings = { apiKey: "none", maxRetries: 0, timeout: 120_000 };
const openai = new OpenAI({ baseURL: `${url}/v1`, ...settings });
const claude = new Anthropic({ baseURL: url, ...settings });

const parameters = { type: "object", properties: { path: { type: "string" } }, required: ["path"] };
const description = "Read a file";
const messages = [{ role: "user", content: "Read the file src/cache.py" }];
const greedy = { model, temperature: 0 };
const said = {};

const tools = [{ type: "function", function: { name: "read_file", description, parameters } }];
const chat = await openai.chat.completions.create({ ...greedy, messages, tools });
const call = chat.choices[0].message.tool_calls[0].function;
said.chat = [call.name, JSON.parse(call.arguments)];
const chunks = openai.chat.completions.stream({ ...greedy, messages, tools, stream_options: { include_usage: true } });
const streamed = await chunks.finalChatCompletion();
const again = streamed.choices[0].message.tool_calls[0].function;
said.chatStream = [again.name, JSON.parse(again.arguments)];
said.chatUsage = [chat.usage.total_tokens, streamed.usage.total_tokens];

const text = { ...greedy, prompt: "Read the file", max_tokens: 8 };
said.completion = (await openai.completions.create(text)).choices[0].text;
said.completionStream = "";
for await (const chunk of await openai.completions.create({ ...text, stream: true })) {
  said.completionStream += chunk.choices[0]?.text ?? "";
}

const items = { ...greedy, input: messages[0].content, tools: [{ type: "function", name: "read_file", description, parameters, strict: false }] };
const response = await openai.responses.create(items);
const called = (one) => one.output.filter((item) => item.type === "function_call").map((item) => [item.name, JSON.parse(item.arguments)])[0];
said.response = called(response);
said.responseStream = called(await openai.responses.stream(items).finalResponse());
said.stored = (await openai.responses.retrieve(response.id)).id === response.id;
await openai.responses.delete(response.id);
said.counted = (await openai.responses.inputTokens.count({ model, input: "hi" })).input_tokens;

said.models = (await openai.models.list()).data.map((one) => one.id);
said.model = (await openai.models.retrieve(model)).id;
const embedded = await openai.embeddings.create({ model, input: ["hi", "there"] });
said.embeddings = embedded.data.map((one) => one.embedding.length);

const asked = { ...greedy, max_tokens: 200, messages, tools: [{ name: "read_file", description, input_schema: parameters }] };
const used = (one) => one.content.filter((block) => block.type === "tool_use").map((block) => [block.name, block.input])[0];
said.message = used(await claude.messages.create(asked));
said.messageStream = used(await claude.messages.stream(asked).finalMessage());
said.countTokens = (await claude.messages.countTokens({ model, messages })).input_tokens;
said.claudeModels = (await claude.models.list()).data.map((one) => one.id);

for (const [name, ask] of Object.entries({
  openaiError: () => openai.chat.completions.create({ ...greedy, messages: [{ role: "user", content: "word ".repeat(40_000) }] }),
  claudeError: () => claude.messages.create({ ...greedy, max_tokens: 5, messages: [{ role: "user", content: "word ".repeat(40_000) }] }),
})) {
  try {
    await ask();
  } catch (error) {
    said[name] = [error.constructor.name, error.status, error.code ?? error.error?.error?.type];
  }
}
console.log(JSON.stringify(said));
